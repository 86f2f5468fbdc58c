import com.couchbase.client.core.deps.io.netty.buffer.ByteBuf;
import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.config.DcpControl;
import com.couchbase.client.dcp.highlevel.CollectionCreated;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.ScopeCreated;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.highlevel.StreamOffset;
import com.couchbase.client.dcp.message.DcpDeletionMessage;
import com.couchbase.client.dcp.message.DcpMutationMessage;
import com.couchbase.client.dcp.message.MessageUtil;
import com.couchbase.client.dcp.message.StreamEndReason;
import com.couchbase.client.dcp.transport.netty.ChannelFlowController;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawJsonTranscoder;
import com.couchbase.client.java.kv.MutateInSpec;
import com.couchbase.client.java.kv.UpsertOptions;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import reactor.core.publisher.Flux;

/** The Java DCP client: low level and high level, against what the Java SDK wrote. */
final class Feeds {
  private static final List<String> COLLECTIONS = List.of("_default._default", "shop.orders", "shop.returns");
  private static final int WINDOW_BYTES = 4000;
  private static final int NOOP_INTERVAL_S = 2;

  private final Parts parts;
  private final Cluster cluster;
  private final Bucket bucket;
  private final int count;
  private final boolean isOnDisk;

  /** Qualified key to the hash of its value. */
  private final Map<String, Integer> expected = new ConcurrentHashMap<>();

  private Feeds(Parts parts) {
    this.parts = parts;
    count = Integer.parseInt(parts.option("count", "1000"));
    isOnDisk = parts.option("kept", "no").equals("yes");
    cluster = parts.connect();
    bucket = cluster.bucket(parts.option("bucket", "default"));
    bucket.waitUntilReady(Duration.ofSeconds(15));
  }

  public static void main(String[] arguments) {
    Parts parts = new Parts(arguments);
    try {
      Feeds feeds = new Feeds(parts);
      parts.add(feeds.count + " writes in three collections", feeds::write);
      parts.add("low level: backfill to now, by hash", () -> feeds.lowLevel(0));
      parts.add("low level: small windows of flow control", () -> feeds.lowLevel(WINDOW_BYTES));
      parts.add("high level: backfill and then live, by hash", () -> feeds.live(builder -> {}));
      parts.add(
          "high level: rollback mitigation, flow control",
          () -> feeds.live(builder -> builder.mitigateRollbacks(100, TimeUnit.MILLISECONDS)));
      parts.add(
          "compression forced", () -> feeds.live(builder -> builder.compression(CompressionMode.FORCED)));
      parts.add("one collection", () -> feeds.filtered(builder -> builder.collectionNames("shop.orders"), "shop.orders"));
      parts.add("one scope, system events", feeds::scope);
      parts.add("without collections", feeds::withoutCollections);
      parts.add("attributes of documents", feeds::attributes);
      parts.add("keys without values", feeds::withoutValues);
      parts.add("noops keep a silent stream alive", feeds::silent);
      parts.add("stop and resume from an offset", feeds::resumed);
      parts.add("the node is restarted while streaming", feeds::restarted);
      parts.run(() -> feeds.cluster.disconnect(Duration.ofSeconds(2)));
    } catch (Throwable error) {
      parts.giveUp(error);
    }
  }

  // ------------------------------------------------------------------------------------------------------ documents

  private Collection collection(String name) {
    String[] names = name.split("\\.");
    return bucket.scope(names[0]).collection(names[1]);
  }

  private static String body(int number, int version) {
    return "{\"number\":" + number + ",\"version\":" + version + ",\"text\":\"" + "lorem ipsum ".repeat(number % 40) + "\"}";
  }

  private void put(String collection, String prefix, int from, int to, int version) {
    UpsertOptions raw = UpsertOptions.upsertOptions().transcoder(RawJsonTranscoder.INSTANCE);
    Flux.range(from, to - from)
        .flatMap(
            number ->
                collection(collection)
                    .reactive()
                    .upsert(prefix + number, body(number, version).getBytes(StandardCharsets.UTF_8), raw),
            128)
        .blockLast(Parts.PATIENCE);
    for (int number = from; number < to; number++) {
      expected.put(collection + "." + prefix + number, hash(body(number, version).getBytes(StandardCharsets.UTF_8)));
    }
  }

  private void remove(String collection, String key) {
    collection(collection).remove(key);
    expected.remove(collection + "." + key);
  }

  private static int hash(byte[] value) {
    return Arrays.hashCode(value);
  }

  private void write() {
    for (String name : COLLECTIONS) {
      put(name, "doc:", 0, count, 1);
      put(name, "doc:", 0, count / 3, 2);
      for (int number = 0; number < count / 10; number++) {
        remove(name, "doc:" + number);
      }
    }
  }

  // --------------------------------------------------------------------------------------------------------- clients

  private Client client(Consumer<Client.Builder> configure) {
    Client.Builder builder = parts.dcpClient();
    configure.accept(builder);
    return builder.build();
  }

  private static Map<Integer, StreamOffset> beginnings(Client client) {
    return IntStream.range(0, client.numPartitions())
        .boxed()
        .collect(Collectors.toMap(vbucket -> vbucket, vbucket -> StreamOffset.ZERO));
  }

  /** What a high-level client brings. */
  private static final class Listener implements DatabaseChangeListener {
    final Map<String, Integer> present = new ConcurrentHashMap<>();
    final Map<Long, String> names = new ConcurrentHashMap<>();
    final Map<String, String> attributes = new ConcurrentHashMap<>();
    final Set<String> created = ConcurrentHashMap.newKeySet();
    final Map<Integer, StreamOffset> offsets = new ConcurrentHashMap<>();
    final AtomicInteger rollbacks = new AtomicInteger();
    final AtomicInteger bytes = new AtomicInteger();
    final List<StreamEnd> ends = new java.util.concurrent.CopyOnWriteArrayList<>();
    volatile Throwable failure;

    private void take(DocumentChange change) {
      names.put(change.getCollection().id(), change.getCollection().scope().name() + "." + change.getCollection().name());
      offsets.put(change.getVbucket(), change.getOffset());
    }

    @Override
    public void onMutation(Mutation mutation) {
      byte[] content = mutation.getContent();
      present.put(qualified(mutation), hash(content));
      bytes.addAndGet(content.length);
      mutation.getXattrs().forEach((name, value) -> attributes.put(qualified(mutation) + "/" + name, value));
      take(mutation);
    }

    @Override
    public void onDeletion(Deletion deletion) {
      present.remove(qualified(deletion));
      take(deletion);
    }

    private static String qualified(DocumentChange change) {
      return change.getCollection().scope().name() + "." + change.getCollection().name() + "." + change.getKey();
    }

    @Override
    public void onCollectionCreated(CollectionCreated event) {
      created.add(event.getCollectionName());
    }

    @Override
    public void onScopeCreated(ScopeCreated event) {
      created.add(event.getScopeName());
    }

    @Override
    public void onRollback(Rollback rollback) {
      rollbacks.incrementAndGet();
      rollback.resume();
    }

    @Override
    public void onStreamEnd(StreamEnd end) {
      ends.add(end);
    }

    @Override
    public void onFailure(StreamFailure failed) {
      failure = failed.getCause();
    }

    void equals(Map<String, Integer> expected) throws InterruptedException {
      long end = System.nanoTime() + Parts.PATIENCE.toNanos();
      while (!present.equals(expected) && failure == null && System.nanoTime() < end) {
        Thread.sleep(10);
      }
      Parts.want(failure == null, "a stream failed: " + failure);
      if (!present.equals(expected)) {
        Map<String, Integer> missing = new ConcurrentHashMap<>(expected);
        missing.entrySet().removeAll(present.entrySet());
        Map<String, Integer> tooMuch = new ConcurrentHashMap<>(present);
        tooMuch.keySet().removeAll(expected.keySet());
        throw new AssertionError(
            missing.size() + " missing or other, as " + missing.keySet().stream().findAny()
                + "; " + tooMuch.size() + " too much, as " + tooMuch.keySet().stream().findAny());
      }
    }
  }

  /** Uses a high-level client that streams from the beginning, and closes it. */
  private void with(Consumer<Client.Builder> configure, Use use) throws Exception {
    Listener listener = new Listener();
    try (Client client = client(builder -> {
      builder.flowControl(64 * 1024);
      configure.accept(builder);
    })) {
      client.listener(listener, FlowControlMode.AUTOMATIC);
      client.connect().block(Parts.PATIENCE);
      client.resumeStreaming(beginnings(client)).block(Parts.PATIENCE);
      use.run(client, listener);
    }
  }

  private interface Use {
    void run(Client client, Listener listener) throws Exception;
  }

  // ----------------------------------------------------------------------------------------------------------- parts

  private void lowLevel(int window) throws Exception {
    Map<String, Integer> present = new ConcurrentHashMap<>();
    Map<Long, String> names = names();
    AtomicInteger deletions = new AtomicInteger();
    try (Client client = client(builder -> builder.flowControl(window))) {
      client.controlEventHandler((flow, event) -> release(flow, event));
      client.systemEventHandler(event -> {});
      client.dataEventHandler(
          (flow, event) -> {
            var id = MessageUtil.getCollectionIdAndKey(event, true);
            String key = names.get(id.collectionId()) + "." + id.key();
            if (DcpMutationMessage.is(event)) {
              present.put(key, hash(MessageUtil.getContentAsByteArray(event)));
            } else if (DcpDeletionMessage.is(event)) {
              present.remove(key);
              deletions.incrementAndGet();
            }
            release(flow, event);
          });
      client.connect().block(Parts.PATIENCE);
      client.initializeState(StreamFrom.BEGINNING, StreamTo.NOW).block(Parts.PATIENCE);
      client.startStreaming().block(Parts.PATIENCE);
      Parts.until("the end of all streams", () -> client.sessionState().isAtEnd());
      Parts.until("all documents, " + present.size() + " of " + expected.size() + " came", () -> present.equals(expected));
      Parts.want(deletions.get() > 0, "no deletion came");
    }
  }

  /** The collections' names by id, which only the high-level client shows. */
  private Map<Long, String> names() throws Exception {
    Map<Long, String> names = new ConcurrentHashMap<>();
    with(
        builder -> {},
        (client, listener) -> {
          Parts.until("a document of each collection", () -> listener.names.size() == COLLECTIONS.size());
          names.putAll(listener.names);
        });
    return names;
  }

  private static void release(ChannelFlowController flow, ByteBuf event) {
    if (MessageUtil.requiresFlowControlAck(event)) {
      flow.ack(event);
    }
    event.release();
  }

  private void live(Consumer<Client.Builder> configure) throws Exception {
    with(
        configure,
        (client, listener) -> {
          listener.equals(expected);
          put("shop.orders", "live:", 0, count / 2, (int) (System.nanoTime() & 0xffff));
          remove("shop.orders", "live:0");
          listener.equals(expected);
          Parts.want(listener.ends.isEmpty(), "streams ended");
        });
  }

  private void filtered(Consumer<Client.Builder> configure, String... names) throws Exception {
    with(configure, (client, listener) -> listener.equals(of(names)));
  }

  /** What is expected of some collections. */
  private Map<String, Integer> of(String... names) {
    return expected.entrySet().stream()
        .filter(entry -> Arrays.stream(names).anyMatch(name -> entry.getKey().startsWith(name + ".")))
        .collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
  }

  private void scope() throws Exception {
    with(
        builder -> builder.scopeName("shop"),
        (client, listener) -> {
          listener.equals(of("shop.orders", "shop.returns"));
          Parts.until(
              "the system events, of which came " + listener.created,
              () -> listener.created.containsAll(Set.of("shop", "orders", "returns")));
        });
  }

  private void withoutCollections() throws Exception {
    with(
        builder -> builder.collectionsAware(false),
        (client, listener) -> listener.equals(of("_default._default")));
  }

  private void attributes() throws Exception {
    String key = "shop.orders.doc:" + (count - 1);
    collection("shop.orders")
        .mutateIn("doc:" + (count - 1), List.of(MutateInSpec.upsert("mine", Map.of("a", 1)).xattr()));
    with(
        builder -> builder.xattrs(true).collectionNames("shop.orders"),
        (client, listener) -> {
          listener.equals(of("shop.orders"));
          Parts.same(listener.attributes, Map.of(key + "/mine", "{\"a\":1}"));
        });
  }

  private void withoutValues() throws Exception {
    with(
        builder -> builder.noValue(true),
        (client, listener) -> {
          Parts.until("all keys", () -> listener.present.keySet().equals(expected.keySet()));
          Parts.same(listener.bytes.get(), 0);
        });
  }

  private void silent() throws Exception {
    with(
        builder -> builder.controlParam(DcpControl.Names.SET_NOOP_INTERVAL, NOOP_INTERVAL_S),
        (client, listener) -> {
          listener.equals(expected);
          // Without a noop the client gives the connection up after two intervals.
          Thread.sleep(3000L * NOOP_INTERVAL_S);
          int rollbacks = listener.rollbacks.get();
          put("shop.orders", "late:", 0, 10, 1);
          listener.equals(expected);
          Parts.same(rollbacks, 0);
          Parts.want(listener.ends.isEmpty(), "streams ended");
        });
  }

  private void resumed() throws Exception {
    Listener first = new Listener();
    try (Client client = client(builder -> builder.flowControl(WINDOW_BYTES))) {
      client.listener(first, FlowControlMode.AUTOMATIC);
      client.connect().block(Parts.PATIENCE);
      client.resumeStreaming(beginnings(client)).block(Parts.PATIENCE);
      Parts.until("some documents", () -> first.present.size() > count / 4);
    }
    put("shop.returns", "later:", 0, count / 4, 1);
    Listener second = new Listener();
    second.present.putAll(first.present);
    try (Client client = client(builder -> builder.flowControl(WINDOW_BYTES))) {
      client.listener(second, FlowControlMode.AUTOMATIC);
      client.connect().block(Parts.PATIENCE);
      Map<Integer, StreamOffset> offsets = beginnings(client);
      offsets.putAll(first.offsets);
      client.resumeStreaming(offsets).block(Parts.PATIENCE);
      second.equals(expected);
      Parts.same(second.rollbacks.get(), 0);
    }
  }

  private void restarted() throws Exception {
    with(
        builder -> {},
        (client, listener) -> {
          listener.equals(expected);
          parts.order("restart");
          if (!isOnDisk) {
            // Nothing is left, and every vbucket is another branch: the client is rolled back, to the beginning.
            expected.clear();
            listener.present.clear();
          }
          Parts.until("the SDK to be back", this::isBack);
          put("_default._default", "after:", 0, count / 2, 1);
          listener.equals(expected);
          Parts.want(isOnDisk == (listener.rollbacks.get() == 0), "rollbacks: " + listener.rollbacks.get());
          List<StreamEnd> wrong =
              listener.ends.stream().filter(end -> end.getReason() == StreamEndReason.OK).collect(Collectors.toList());
          Parts.want(wrong.isEmpty(), "streams without an end ended");
        });
  }

  private boolean isBack() {
    try {
      put("_default._default", "after:", 0, 1, 1);
      return true;
    } catch (RuntimeException error) {
      return false;
    }
  }
}
