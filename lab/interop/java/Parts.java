import com.couchbase.client.dcp.Client;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.env.ClusterEnvironment;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.BooleanSupplier;

/** Code that the programs share: the command line, trying and reporting parts, and asking a node to restart. */
final class Parts {
  static final Duration PATIENCE = Duration.ofSeconds(30);

  /** Something that is tried; it fails with an exception. */
  interface Attempt {
    void run() throws Exception;
  }

  private final Map<String, Attempt> attempts = new LinkedHashMap<>();
  private final Map<String, String> options = new HashMap<>();
  private final BufferedReader answers =
      new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
  private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  Parts(String[] arguments) {
    for (int index = 0; index + 1 < arguments.length; index += 2) {
      options.put(arguments[index].substring(1), arguments[index + 1]);
    }
  }

  String option(String name) {
    return options.get(name);
  }

  String option(String name, String otherwise) {
    return options.getOrDefault(name, otherwise);
  }

  boolean isTls() {
    return option("connect").startsWith("couchbases://");
  }

  void add(String name, Attempt attempt) {
    attempts.put(name, attempt);
  }

  /** Tries all parts, also after one has failed; prints what came of them, and ends the process. */
  void run(Attempt end) {
    int failed = 0;
    for (Map.Entry<String, Attempt> part : attempts.entrySet()) {
      try {
        part.getValue().run();
        out.println("ok " + part.getKey());
      } catch (Throwable error) {
        failed++;
        out.println("FAIL " + part.getKey() + ": " + shortened(error));
      }
    }
    int count = attempts.size();
    out.println(failed == 0 ? "OK " + count + " parts" : "FAIL " + failed + " of " + count + " parts");
    try {
      end.run();
    } catch (Exception error) {
      error.printStackTrace();
    }
    // The clients leave threads behind that would keep the process alive.
    Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
  }

  void giveUp(Throwable error) {
    out.println("FAIL to begin: " + shortened(error));
    Runtime.getRuntime().halt(1);
  }

  private static String shortened(Throwable error) {
    String text = error.toString().replaceAll("\\s+", " ");
    for (StackTraceElement place : error.getStackTrace()) {
      if (place.getFileName() != null && place.getFileName().matches("(Kv|Feeds|Moves|Reader)\\.java")) {
        text = place.getFileName() + ":" + place.getLineNumber() + ": " + text;
        break;
      }
    }
    return text.substring(0, Math.min(500, text.length()));
  }

  /** Has something done to the node, and waits for it. */
  void order(String action) throws Exception {
    out.println("DO " + action);
    want("DONE".equals(answers.readLine()), "nobody does " + action);
  }

  static void want(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }

  static void same(Object found, Object expected) {
    want(expected.equals(found), "expected " + expected + ", found " + found);
  }

  static void refused(Class<? extends Exception> kind, Attempt attempt) {
    try {
      attempt.run();
    } catch (Exception error) {
      want(kind.isInstance(error), "expected " + kind.getSimpleName() + ", got " + error);
      return;
    }
    throw new AssertionError("expected " + kind.getSimpleName() + ", nothing was refused");
  }

  static void until(String what, BooleanSupplier holds) throws InterruptedException {
    long end = System.nanoTime() + PATIENCE.toNanos();
    while (!holds.getAsBoolean()) {
      want(System.nanoTime() < end, what + ": not in time");
      Thread.sleep(10);
    }
  }

  /** A builder of DCP clients with the login and the certificate of the command line. */
  Client.Builder dcpClient() {
    Client.Builder builder =
        Client.builder()
            .connectionString(option("connect"))
            .bucket(option("bucket", "default"))
            .credentials(option("user"), option("password"))
            .collectionsAware(true)
            .userAgent("interop", "1")
            .bootstrapTimeout(PATIENCE);
    if (isTls()) {
      builder.securityConfig(security -> security.enableTls(true).trustCertificate(Path.of(option("ca"))));
    }
    return builder;
  }

  /** A cluster of the Java SDK that is ready for key-value requests. */
  Cluster connect() {
    ClusterEnvironment.Builder builder = ClusterEnvironment.builder();
    if (isTls()) {
      builder.securityConfig(security -> security.enableTls(true).trustCertificate(Path.of(option("ca"))));
    }
    ClusterEnvironment environment = builder.build();
    return Cluster.connect(
        option("connect"),
        ClusterOptions.clusterOptions(option("user"), option("password")).environment(environment));
  }
}
