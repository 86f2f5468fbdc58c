import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.highlevel.CollectionCreated;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.SeqnoAdvanced;
import com.couchbase.client.dcp.highlevel.SnapshotMarker;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.highlevel.StreamOffset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Map;

/**
 * Goes on from a recorded position of vbucket 0 by the high-level client, as connectors do, and prints what comes. The
 * position is the offset of the last change or SEQNO_ADVANCED.
 */
final class Reader implements DatabaseChangeListener {
  private static final int VBUCKET = 0;

  private final Parts parts;
  private final int count;
  private StreamOffset position = StreamOffset.ZERO;
  private int changes;
  private volatile long lastNews = System.nanoTime();
  private volatile boolean isFull;

  private Reader(Parts parts) {
    this.parts = parts;
    count = number("count", 0);
  }

  public static void main(String[] arguments) {
    Parts parts = new Parts(arguments);
    try {
      Reader reader = new Reader(parts);
      reader.load();
      parts.add("read", reader::read);
      parts.run(() -> {});
    } catch (Throwable error) {
      parts.giveUp(error);
    }
  }

  private int number(String name, int otherwise) {
    return Integer.parseInt(parts.option(name, Integer.toString(otherwise)));
  }

  private void load() throws Exception {
    Path file = Path.of(parts.option("position"));
    if (Files.exists(file)) {
      String[] words = Files.readString(file).trim().split(" ");
      SnapshotMarker snapshot = new SnapshotMarker(Long.parseLong(words[2]), Long.parseLong(words[3]));
      position =
          new StreamOffset(
              Long.parseUnsignedLong(words[0]), Long.parseLong(words[1]), snapshot, Long.parseLong(words[4]));
    }
  }

  private synchronized void save() throws Exception {
    String line =
        String.join(
            " ",
            Long.toUnsignedString(position.getVbuuid()),
            Long.toString(position.getSeqno()),
            Long.toString(position.getSnapshot().getStartSeqno()),
            Long.toString(position.getSnapshot().getEndSeqno()),
            Long.toString(position.getCollectionsManifestUid()));
    Files.writeString(Path.of(parts.option("position")), line + "\n");
  }

  private void read() throws Exception {
    Client.Builder builder =
        parts.dcpClient().noValue(parts.option("keys-only", "no").equals("yes")).flowControl(1 << 20);
    String names = parts.option("collections", "");
    if (!names.isEmpty()) {
      builder.collectionNames(names.split(","));
    }
    try (Client client = builder.build()) {
      client.listener(this, FlowControlMode.AUTOMATIC);
      client.connect().block(Parts.PATIENCE);
      client.resumeStreaming(Map.of(VBUCKET, position)).block(Parts.PATIENCE);
      lastNews = System.nanoTime();
      long quiet = number("quiet", 2000) * 1_000_000L;
      while (!isFull && System.nanoTime() - lastNews < quiet) {
        Thread.sleep(10);
      }
    }
    save();
  }

  private synchronized void take(String op, DocumentChange change, byte[] value) {
    lastNews = System.nanoTime();
    if (isFull) {
      return;
    }
    Base64.Encoder encoder = Base64.getEncoder();
    String key = encoder.encodeToString(change.getKey().getBytes(StandardCharsets.UTF_8));
    System.out.println(op + " " + key + " " + encoder.encodeToString(value) + " " + change.getOffset().getSeqno());
    position = change.getOffset();
    changes++;
    isFull = changes == count;
  }

  @Override
  public void onMutation(Mutation mutation) {
    take("mutation", mutation, mutation.getContent());
  }

  @Override
  public void onDeletion(Deletion deletion) {
    take("deletion", deletion, new byte[0]);
  }

  @Override
  public synchronized void onSeqnoAdvanced(SeqnoAdvanced advanced) {
    lastNews = System.nanoTime();
    if (!isFull) {
      position = advanced.getOffset();
    }
  }

  @Override
  public synchronized void onCollectionCreated(CollectionCreated created) {
    System.out.println("event");
    changes++;
  }

  @Override
  public void onRollback(Rollback rollback) {
    System.out.println("rollback");
    rollback.resume();
  }

  @Override
  public void onStreamEnd(StreamEnd end) {
    lastNews = System.nanoTime();
    System.out.println("end " + end.getReason());
  }

  @Override
  public void onFailure(StreamFailure failed) {
    lastNews = System.nanoTime();
    System.out.println("failed " + failed.getCause());
  }
}
