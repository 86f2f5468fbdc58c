import static com.couchbase.client.java.kv.GetAndLockOptions.getAndLockOptions;
import static com.couchbase.client.java.kv.GetOptions.getOptions;
import static com.couchbase.client.java.kv.IncrementOptions.incrementOptions;
import static com.couchbase.client.java.kv.InsertOptions.insertOptions;
import static com.couchbase.client.java.kv.MutateInOptions.mutateInOptions;
import static com.couchbase.client.java.kv.RemoveOptions.removeOptions;
import static com.couchbase.client.java.kv.ReplaceOptions.replaceOptions;
import static com.couchbase.client.java.kv.UpsertOptions.upsertOptions;

import com.couchbase.client.core.diagnostics.PingState;
import com.couchbase.client.core.error.BucketExistsException;
import com.couchbase.client.core.error.BucketNotFlushableException;
import com.couchbase.client.core.error.BucketNotFoundException;
import com.couchbase.client.core.error.CasMismatchException;
import com.couchbase.client.core.error.CollectionExistsException;
import com.couchbase.client.core.error.CollectionNotFoundException;
import com.couchbase.client.core.error.DocumentExistsException;
import com.couchbase.client.core.error.DocumentLockedException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.error.DocumentUnretrievableException;
import com.couchbase.client.core.error.ScopeExistsException;
import com.couchbase.client.core.error.ScopeNotFoundException;
import com.couchbase.client.core.error.TimeoutException;
import com.couchbase.client.core.error.subdoc.PathNotFoundException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.core.msg.kv.MutationToken;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.json.JsonArray;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.LookupInMacro;
import com.couchbase.client.java.kv.LookupInResult;
import com.couchbase.client.java.kv.LookupInSpec;
import com.couchbase.client.java.kv.MutateInMacro;
import com.couchbase.client.java.kv.MutateInResult;
import com.couchbase.client.java.kv.MutateInSpec;
import com.couchbase.client.java.kv.MutationResult;
import com.couchbase.client.java.kv.MutationState;
import com.couchbase.client.java.kv.ScanOptions;
import com.couchbase.client.java.kv.ScanType;
import com.couchbase.client.java.kv.StoreSemantics;
import com.couchbase.client.java.manager.bucket.BucketManager;
import com.couchbase.client.java.manager.bucket.BucketSettings;
import com.couchbase.client.java.manager.collection.CollectionManager;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import reactor.core.publisher.Flux;

/** The Java SDK: key-value calls, collections, buckets. */
final class Kv {
  private static final int MANY = 1000;
  private static final Duration SHORT = Duration.ofMillis(800);

  private final Parts parts;
  private final Cluster cluster;
  private final Bucket bucket;

  private Kv(Parts parts) {
    this.parts = parts;
    cluster = parts.connect();
    bucket = cluster.bucket(parts.option("bucket", "default"));
    bucket.waitUntilReady(Duration.ofSeconds(15));
  }

  public static void main(String[] arguments) {
    Parts parts = new Parts(arguments);
    try {
      Kv kv = new Kv(parts);
      kv.on("", kv.bucket.defaultCollection());
      kv.on(" (named collection)", kv.bucket.scope("shop").collection("orders"));
      parts.add("ping", kv::ping);
      parts.add("unknown collection", kv::unknown);
      parts.add("collection manager", kv::collections);
      parts.add("bucket manager", kv::buckets);
      parts.run(() -> kv.cluster.disconnect(Duration.ofSeconds(2)));
    } catch (Throwable error) {
      parts.giveUp(error);
    }
  }

  private void on(String label, Collection c) {
    parts.add("upsert, get, exists, insert, replace, remove" + label, () -> basics(c));
    parts.add("touch, expiry, preserved expiry" + label, () -> expiry(c));
    parts.add("get-and-lock and unlock" + label, () -> locks(c));
    parts.add("counters, append, prepend" + label, () -> binary(c));
    parts.add("lookup in" + label, () -> lookups(c));
    parts.add("mutate in" + label, () -> mutations(c));
    parts.add("attributes and macros" + label, () -> attributes(c));
    parts.add("replica reads" + label, () -> replicas(c));
    parts.add("durable writes" + label, () -> durable(c));
    parts.add("range scan" + label, () -> scan(c));
    parts.add("many at once, large values" + label, () -> many(c));
  }

  private static void basics(Collection c) {
    JsonObject value = JsonObject.create().put("name", "Ærø").put("list", JsonArray.from(1, 2.5, true));
    MutationResult stored = c.upsert("doc", value);
    Parts.want(stored.mutationToken().isPresent(), "no mutation token");
    GetResult got = c.get("doc");
    Parts.same(got.contentAsObject(), value);
    Parts.same(got.cas(), stored.cas());
    Parts.want(c.exists("doc").exists(), "it is not there");
    Parts.refused(DocumentExistsException.class, () -> c.insert("doc", value));
    Parts.refused(
        CasMismatchException.class, () -> c.replace("doc", value, replaceOptions().cas(stored.cas() + 1)));
    MutationResult replaced = c.replace("doc", 2, replaceOptions().cas(stored.cas()));
    Parts.refused(CasMismatchException.class, () -> c.remove("doc", removeOptions().cas(stored.cas())));
    c.remove("doc", removeOptions().cas(replaced.cas()));
    Parts.want(!c.exists("doc").exists(), "it is still there");
    Parts.refused(DocumentNotFoundException.class, () -> c.get("doc"));
    Parts.refused(DocumentNotFoundException.class, () -> c.remove("doc"));
    c.upsert("projected", JsonObject.create().put("a", JsonObject.create().put("b", 1).put("c", 2)).put("d", 3));
    Parts.same(
        c.get("projected", getOptions().project("a.b", "d")).contentAsObject(),
        JsonObject.fromJson("{\"a\":{\"b\":1},\"d\":3}"));
  }

  private static Instant expires(Collection c, String key) {
    return c.get(key, getOptions().withExpiry(true)).expiryTime().orElseThrow();
  }

  private static void expiry(Collection c) throws InterruptedException {
    c.upsert("touched", 1);
    c.touch("touched", Duration.ofHours(2));
    Instant first = expires(c, "touched");
    Parts.want(Duration.between(Instant.now(), first).toMinutes() >= 118, "expires " + first);
    c.getAndTouch("touched", Duration.ofHours(4));
    Instant second = expires(c, "touched");
    Parts.want(second.isAfter(first.plusSeconds(7000)), "expires " + second);
    c.upsert("touched", 2, upsertOptions().preserveExpiry(true));
    Parts.same(expires(c, "touched"), second);
    c.upsert("mortal", 1, upsertOptions().expiry(Duration.ofSeconds(1)));
    Parts.until("the end of a document", () -> !c.exists("mortal").exists());
  }

  private static void locks(Collection c) {
    c.upsert("locked", 1);
    GetResult locked = c.getAndLock("locked", Duration.ofSeconds(20), getAndLockOptions());
    Parts.refused(TimeoutException.class, () -> c.upsert("locked", 2, upsertOptions().timeout(SHORT)));
    c.unlock("locked", locked.cas());
    c.upsert("locked", 3);
    GetResult again = c.getAndLock("locked", Duration.ofSeconds(20));
    c.replace("locked", 4, replaceOptions().cas(again.cas()));
    c.upsert("locked", 5);
  }

  private static void binary(Collection c) {
    Parts.same(c.binary().increment("counter", incrementOptions().initial(10)).content(), 10L);
    Parts.same(c.binary().increment("counter", incrementOptions().delta(5)).content(), 15L);
    Parts.same(c.binary().decrement("counter").content(), 14L);
    c.upsert("joined", "middle".getBytes(), upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE));
    c.binary().append("joined", "-end".getBytes());
    c.binary().prepend("joined", "start-".getBytes());
    byte[] got = c.get("joined", getOptions().transcoder(RawBinaryTranscoder.INSTANCE)).contentAsBytes();
    Parts.same(new String(got), "start-middle-end");
  }

  private static void lookups(Collection c) {
    c.upsert("looked", JsonObject.fromJson("{\"a\":{\"b\":[10,20,{\"c\":\"x\"}]},\"n\":5}"));
    LookupInResult got =
        c.lookupIn(
            "looked",
            List.of(
                LookupInSpec.get("a.b[2].c"),
                LookupInSpec.exists("n"),
                LookupInSpec.exists("m"),
                LookupInSpec.count("a.b"),
                LookupInSpec.get("m"),
                LookupInSpec.get("")));
    Parts.same(got.contentAs(0, String.class), "x");
    Parts.want(got.exists(1) && !got.exists(2), "exists");
    Parts.same(got.contentAs(3, Integer.class), 3);
    Parts.refused(PathNotFoundException.class, () -> got.contentAs(4, Integer.class));
    Parts.same(got.contentAsObject(5).getInt("n"), 5);
  }

  private static void mutations(Collection c) {
    c.upsert("changed", JsonObject.fromJson("{\"list\":[1],\"n\":5,\"old\":1}"));
    MutateInResult done =
        c.mutateIn(
            "changed",
            List.of(
                MutateInSpec.upsert("x.y", "new").createPath(),
                MutateInSpec.insert("added", true),
                MutateInSpec.replace("added", false),
                MutateInSpec.arrayAppend("list", List.of(2, 3)),
                MutateInSpec.arrayPrepend("list", List.of(0)),
                MutateInSpec.arrayInsert("list[1]", List.of("in")),
                MutateInSpec.arrayAddUnique("list", 9),
                MutateInSpec.increment("n", 4),
                MutateInSpec.decrement("n", 11),
                MutateInSpec.remove("old")));
    Parts.same(done.contentAs(8, Integer.class), -2);
    JsonObject expected =
        JsonObject.fromJson("{\"list\":[0,\"in\",1,2,3,9],\"n\":-2,\"x\":{\"y\":\"new\"},\"added\":false}");
    Parts.same(c.get("changed").contentAsObject(), expected);
    c.mutateIn("made", List.of(MutateInSpec.upsert("a", 1)), mutateInOptions().storeSemantics(StoreSemantics.INSERT));
    Parts.refused(
        DocumentExistsException.class,
        () ->
            c.mutateIn(
                "made", List.of(MutateInSpec.upsert("a", 1)), mutateInOptions().storeSemantics(StoreSemantics.INSERT)));
  }

  private static void attributes(Collection c) {
    c.upsert("attributes", JsonObject.create());
    c.mutateIn(
        "attributes",
        List.of(
            MutateInSpec.upsert("mine.cas", MutateInMacro.CAS).createPath(),
            MutateInSpec.upsert("mine.crc", MutateInMacro.VALUE_CRC_32C).createPath(),
            MutateInSpec.upsert("mine.seqno", MutateInMacro.SEQ_NO).createPath()));
    LookupInResult got =
        c.lookupIn(
            "attributes",
            List.of(
                LookupInSpec.get("mine.cas").xattr(),
                LookupInSpec.get("mine.crc").xattr(),
                LookupInSpec.get(LookupInMacro.CAS).xattr(),
                LookupInSpec.get(LookupInMacro.DOCUMENT).xattr()));
    Parts.want(got.contentAs(0, String.class).startsWith("0x"), "CAS " + got.contentAs(0, String.class));
    Parts.want(got.contentAs(1, String.class).startsWith("0x"), "CRC " + got.contentAs(1, String.class));
    Parts.same(Long.decode(got.contentAs(2, String.class)), got.cas());
    Parts.same(got.contentAsObject(3).getBoolean("deleted"), false);
  }

  private static void replicas(Collection c) {
    c.upsert("copied", 1);
    Parts.want(!c.getAnyReplica("copied").isReplica(), "a replica, of none");
    Parts.same(c.getAllReplicas("copied").count(), 1L);
    Parts.refused(DocumentUnretrievableException.class, () -> c.getAnyReplica("nosuch"));
  }

  private static void durable(Collection c) {
    for (DurabilityLevel level : List.of(
        DurabilityLevel.MAJORITY,
        DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
        DurabilityLevel.PERSIST_TO_MAJORITY)) {
      c.upsert("durable", 1, upsertOptions().durability(level));
      c.remove("durable", removeOptions().durability(level));
      c.insert("durable", level.name(), insertOptions().durability(level));
    }
    Parts.same(c.get("durable").contentAs(String.class), DurabilityLevel.PERSIST_TO_MAJORITY.name());
  }

  private static void scan(Collection c) {
    List<MutationToken> tokens = new ArrayList<>();
    for (int number = 0; number < 40; number++) {
      MutationResult stored = c.upsert(String.format("scan:%03d", number), number);
      tokens.add(stored.mutationToken().orElseThrow());
    }
    MutationState state = MutationState.from(tokens.toArray(new MutationToken[0]));
    Set<String> found = new HashSet<>();
    c.scan(ScanType.prefixScan("scan:"), ScanOptions.scanOptions().consistentWith(state))
        .forEach(item -> found.add(item.id()));
    Parts.same(found.size(), 40);
    Parts.same(c.scan(ScanType.samplingScan(10, 1)).count(), 10L);
  }

  private static void many(Collection c) {
    Flux.range(0, MANY)
        .flatMap(number -> c.reactive().upsert("many:" + number, JsonObject.create().put("number", number)), 128)
        .blockLast(Parts.PATIENCE);
    List<Integer> wrong =
        Flux.range(0, MANY)
            .filterWhen(
                number ->
                    c.reactive().get("many:" + number).map(got -> !number.equals(got.contentAsObject().getInt("number"))),
                128)
            .collectList()
            .block(Parts.PATIENCE);
    Parts.want(wrong != null && wrong.isEmpty(), "wrong: " + wrong);
    String large = "lorem ipsum ".repeat(100_000);
    c.upsert("large", large);
    Parts.same(c.get("large").contentAs(String.class), large);
  }

  private void ping() {
    cluster.ping().endpoints().values().stream()
        .flatMap(List::stream)
        .forEach(endpoint -> Parts.same(endpoint.state(), PingState.OK));
    Parts.want(!bucket.ping().endpoints().isEmpty(), "no endpoint");
  }

  private void unknown() {
    Collection nobody = bucket.scope("shop").collection("nosuch");
    Parts.refused(TimeoutException.class, () -> nobody.get("k", getOptions().timeout(SHORT)));
  }

  private void collections() throws InterruptedException {
    CollectionManager manager = bucket.collections();
    manager.createScope("s1");
    Parts.refused(ScopeExistsException.class, () -> manager.createScope("s1"));
    manager.createCollection("s1", "c1");
    Parts.refused(CollectionExistsException.class, () -> manager.createCollection("s1", "c1"));
    Parts.refused(ScopeNotFoundException.class, () -> manager.createCollection("nosuch", "c1"));
    Parts.want(
        manager.getAllScopes().stream()
            .anyMatch(scope -> scope.name().equals("s1") && scope.collections().size() == 1),
        "the scope is not listed");
    Collection named = bucket.scope("s1").collection("c1");
    named.upsert("k", 1);
    Parts.same(named.get("k").contentAs(Integer.class), 1);
    manager.dropCollection("s1", "c1");
    Parts.refused(CollectionNotFoundException.class, () -> manager.dropCollection("s1", "c1"));
    manager.dropScope("s1");
    Parts.refused(ScopeNotFoundException.class, () -> manager.dropScope("s1"));
  }

  private void buckets() throws InterruptedException {
    BucketManager manager = cluster.buckets();
    BucketSettings settings = BucketSettings.create("made").ramQuotaMB(128).flushEnabled(true).numReplicas(0);
    manager.createBucket(settings);
    Parts.refused(BucketExistsException.class, () -> manager.createBucket(settings));
    Parts.same(manager.getBucket("made").ramQuotaMB(), 128L);
    Parts.want(manager.getAllBuckets().containsKey("default"), "default is not listed");
    Bucket made = cluster.bucket("made");
    made.waitUntilReady(Duration.ofSeconds(10));
    made.defaultCollection().upsert("k", 1);
    manager.flushBucket("made");
    Parts.until("the flush", () -> !made.defaultCollection().exists("k").exists());
    manager.updateBucket(settings.flushEnabled(false).ramQuotaMB(256));
    Parts.same(manager.getBucket("made").ramQuotaMB(), 256L);
    Parts.refused(BucketNotFlushableException.class, () -> manager.flushBucket("made"));
    manager.dropBucket("made");
    Parts.refused(BucketNotFoundException.class, () -> manager.getBucket("made"));
  }
}
