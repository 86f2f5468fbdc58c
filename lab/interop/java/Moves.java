import com.couchbase.client.core.error.AmbiguousTimeoutException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.error.DurabilityAmbiguousException;
import com.couchbase.client.core.error.DurabilityImpossibleException;
import com.couchbase.client.core.error.DurableWriteInProgressException;
import com.couchbase.client.core.error.RequestCanceledException;
import com.couchbase.client.core.error.TemporaryFailureException;
import com.couchbase.client.core.error.TimeoutException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.highlevel.StreamOffset;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawJsonTranscoder;
import com.couchbase.client.java.kv.GetOptions;
import com.couchbase.client.java.kv.UpsertOptions;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The Java SDK, and with `-follow yes` the Java DCP client, while the nodes of a cluster come, are killed and are
 * replaced.
 */
final class Moves {
  /** Of each kind, durable and plain; they are written in turn. */
  private static final int KEYS = 60;

  /** The longest time in which no write succeeds, and the longest wait for all documents. */
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private static final long PAUSE_MS = 10;

  /** What the SDK hands to the application: it has not succeeded, or nobody knows. */
  private static final List<Class<? extends Exception>> RETRIED =
      List.of(
          AmbiguousTimeoutException.class,
          DurabilityAmbiguousException.class,
          DurableWriteInProgressException.class,
          RequestCanceledException.class,
          TemporaryFailureException.class,
          TimeoutException.class);

  private final Parts parts;
  private final Cluster cluster;
  private final Collection collection;
  private final Map<String, Integer> acknowledged = new ConcurrentHashMap<>();
  private final AtomicInteger rounds = new AtomicInteger();
  private final AtomicInteger refused = new AtomicInteger();
  private final AtomicBoolean isOver = new AtomicBoolean();
  private final Thread writer = new Thread(this::write, "writer");
  private volatile Throwable error;
  private final Listener listener = new Listener();

  private Moves(Parts parts) {
    this.parts = parts;
    cluster = parts.connect();
    Bucket bucket = cluster.bucket(parts.option("bucket", "default"));
    bucket.waitUntilReady(Duration.ofSeconds(15));
    collection = bucket.scope("shop").collection("orders");
    writer.setDaemon(true);
  }

  public static void main(String[] arguments) {
    Parts parts = new Parts(arguments);
    try {
      Moves moves = new Moves(parts);
      boolean isFollowing = parts.option("follow", "no").equals("yes");
      if (isFollowing) {
        moves.follow();
      }
      moves.writer.start();
      parts.add("writes and reads while a node is added", () -> moves.during("grow"));
      parts.add("writes and reads while a node is killed and failed over", () -> moves.during("kill"));
      parts.add("writes and reads while the killed node is replaced", () -> moves.during("grow"));
      parts.add("every acknowledged durable write is there", moves::compare);
      if (isFollowing) {
        parts.add("streams are resumed, and every change comes once", moves::followed);
      }
      parts.run(() -> moves.cluster.disconnect(Duration.ofSeconds(2)));
    } catch (Throwable error) {
      parts.giveUp(error);
    }
  }

  // ---------------------------------------------------------------------------------------------------- the key-value load

  private void put(String key, int number, boolean isDurable) {
    UpsertOptions options = UpsertOptions.upsertOptions().transcoder(RawJsonTranscoder.INSTANCE);
    if (isDurable) {
      options.durability(DurabilityLevel.MAJORITY);
    }
    collection.upsert(key, Integer.toString(number).getBytes(StandardCharsets.UTF_8), options);
  }

  /** The number under a key, -1 for none. */
  private int number(String key) {
    try {
      byte[] found =
          collection.get(key, GetOptions.getOptions().transcoder(RawJsonTranscoder.INSTANCE)).contentAs(byte[].class);
      return Integer.parseInt(new String(found, StandardCharsets.UTF_8));
    } catch (DocumentNotFoundException missing) {
      return -1;
    }
  }

  /** Repeats a call as an application does. */
  private static <T> T again(Callable<T> call) throws Exception {
    long end = System.nanoTime() + PATIENCE.toNanos();
    while (true) {
      try {
        return call.call();
      } catch (Exception failure) {
        if (RETRIED.stream().noneMatch(kind -> kind.isInstance(failure)) || System.nanoTime() > end) {
          throw failure;
        }
      }
      Thread.sleep(PAUSE_MS);
    }
  }

  private void write() {
    try {
      for (int turn = 0; !isOver.get(); turn++) {
        int number = turn;
        String durable = "durable:" + number % KEYS;
        String plain = "plain:" + number % KEYS;
        try {
          again(
              () -> {
                put(durable, number, true);
                return null;
              });
          acknowledged.put(durable, number);
        } catch (DurabilityImpossibleException tooFew) {
          // The vbucket has too few copies, as after a failover without a second replica: nothing was written.
          refused.incrementAndGet();
        }
        again(
            () -> {
              put(plain, number, false);
              return null;
            });
        int found = again(() -> number(plain));
        Parts.want(found <= number, plain + " is " + found + ", and " + number + " was written last");
        rounds.set(number + 1);
      }
    } catch (Throwable failure) {
      error = failure;
    }
  }

  private void until(int goal) throws Exception {
    long end = System.nanoTime() + PATIENCE.toNanos();
    while (rounds.get() < goal) {
      if (error != null) {
        throw new AssertionError("the writer ended: " + error, error);
      }
      Parts.want(System.nanoTime() < end, rounds.get() + " writes, " + goal + " were expected");
      Thread.sleep(PAUSE_MS);
    }
  }

  /** Has every document written before an action and after it. */
  private void during(String action) throws Exception {
    until(KEYS);
    parts.order(action);
    until(rounds.get() + 1); // the one that was under way may have begun before
    int before = refused.get();
    until(rounds.get() + KEYS);
    Parts.want(
        action.equals("kill") || refused.get() == before,
        "a durable write is impossible, and every vbucket has its replica");
    listener.check();
  }

  private void compare() throws Exception {
    isOver.set(true);
    writer.join(PATIENCE.toMillis());
    Parts.want(error == null, "the writer ended: " + error);
    Parts.same(acknowledged.size(), KEYS);
    for (Map.Entry<String, Integer> each : acknowledged.entrySet()) {
      int found = again(() -> number(each.getKey()));
      Parts.want(found >= each.getValue(), each.getKey() + " is " + found + ", acknowledged was " + each.getValue());
    }
  }

  // ------------------------------------------------------------------------------------------------- the DCP client

  /** A version that a document had; null for a deletion. */
  private record Version(int vbucket, long seqno, String value) {}

  /** Keeps every version; what a rollback takes back it forgets. The client resumes streams by itself. */
  private static final class Listener implements DatabaseChangeListener {
    private final Map<String, List<Version>> versions = new HashMap<>();
    private final Map<Integer, Long> last = new HashMap<>();
    private String wrong;

    private synchronized void take(DocumentChange change, String value) {
      long seqno = change.getOffset().getSeqno();
      Long before = last.put(change.getVbucket(), seqno);
      if (before != null && seqno <= before) {
        wrong = "vbucket " + change.getVbucket() + ": seqno " + seqno + " after " + before;
      }
      versions
          .computeIfAbsent(change.getKey(), key -> new ArrayList<>())
          .add(new Version(change.getVbucket(), seqno, value));
    }

    @Override
    public void onMutation(Mutation mutation) {
      take(mutation, new String(mutation.getContent(), StandardCharsets.UTF_8));
    }

    @Override
    public void onDeletion(Deletion deletion) {
      take(deletion, null);
    }

    @Override
    public synchronized void onRollback(Rollback rollback) {
      for (List<Version> each : versions.values()) {
        each.removeIf(
            version -> version.vbucket() == rollback.getVbucket() && version.seqno() > rollback.getSeqno());
      }
      last.computeIfPresent(rollback.getVbucket(), (vbucket, seqno) -> Math.min(seqno, rollback.getSeqno()));
      rollback.resume();
    }

    @Override
    public void onStreamEnd(StreamEnd end) {}

    @Override
    public synchronized void onFailure(StreamFailure failed) {
      wrong = "a stream failed: " + failed.getCause();
    }

    synchronized Map<String, String> present() {
      Map<String, String> found = new HashMap<>();
      versions.forEach(
          (key, each) -> {
            if (!each.isEmpty() && each.get(each.size() - 1).value() != null) {
              found.put(key, each.get(each.size() - 1).value());
            }
          });
      return found;
    }

    synchronized void check() {
      Parts.want(wrong == null, wrong);
    }
  }

  private void follow() {
    Client.Builder builder = parts.dcpClient().collectionNames("shop.orders").flowControl(64 * 1024);
    Client client = builder.build(); // the process ends with it
    client.listener(listener, FlowControlMode.AUTOMATIC);
    client.connect().block(Parts.PATIENCE);
    Map<Integer, StreamOffset> beginnings =
        IntStream.range(0, client.numPartitions())
            .boxed()
            .collect(Collectors.toMap(vbucket -> vbucket, vbucket -> StreamOffset.ZERO));
    client.resumeStreaming(beginnings).block(Parts.PATIENCE);
  }

  /** Waits until the client has brought what the bucket has. */
  private void followed() throws Exception {
    Map<String, String> expected = new HashMap<>();
    for (int number = 0; number < KEYS; number++) {
      for (String key : List.of("durable:" + number, "plain:" + number)) {
        int found = again(() -> number(key));
        if (found >= 0) {
          expected.put(key, Integer.toString(found));
        }
      }
    }
    long end = System.nanoTime() + PATIENCE.toNanos();
    while (!listener.present().equals(expected) && System.nanoTime() < end) {
      Thread.sleep(PAUSE_MS);
      listener.check();
    }
    listener.check();
    Map<String, String> found = listener.present();
    Parts.want(
        found.equals(expected),
        "the streams brought " + found.size() + " documents, the bucket has " + expected.size() + ": " + found
            + " instead of " + expected);
  }
}
