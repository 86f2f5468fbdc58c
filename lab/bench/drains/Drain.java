import com.couchbase.client.core.deps.io.netty.buffer.ByteBuf;
import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.highlevel.StreamOffset;
import com.couchbase.client.dcp.message.DcpMutationMessage;
import com.couchbase.client.dcp.message.MessageUtil;
import com.couchbase.client.dcp.transport.netty.ChannelFlowController;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Reads a bucket through java-dcp-client until so many mutations have come, and drops them.
 *
 * <p>Arguments: connection string, count, "high" or "low".
 */
final class Drain {
  private static final Duration PATIENCE = Duration.ofSeconds(300);
  private static final int WINDOW_BYTES = 20 * 1024 * 1024;
  private static final AtomicLong COUNT = new AtomicLong();
  private static final CountDownLatch DONE = new CountDownLatch(1);

  private Drain() {}

  public static void main(String[] arguments) throws Exception {
    long wanted = Long.parseLong(arguments[1]);
    boolean isHigh = arguments[2].equals("high");
    try (Client client =
        Client.builder()
            .connectionString(arguments[0])
            .bucket("default")
            .credentials("Administrator", "password")
            .collectionsAware(true)
            .userAgent("bench", "1")
            .bootstrapTimeout(PATIENCE)
            .flowControl(WINDOW_BYTES)
            .build()) {
      if (isHigh) {
        client.listener(new Listener(wanted), FlowControlMode.AUTOMATIC);
      } else {
        client.controlEventHandler(Drain::release);
        client.systemEventHandler(event -> {});
        client.dataEventHandler(
            (flow, event) -> {
              boolean isMutation = DcpMutationMessage.is(event);
              release(flow, event);
              if (isMutation) {
                count(wanted);
              }
            });
      }
      client.connect().block(PATIENCE);
      if (wanted > 0) {
        if (isHigh) {
          client
              .resumeStreaming(
                  IntStream.range(0, client.numPartitions())
                      .boxed()
                      .collect(Collectors.toMap(vbucket -> vbucket, vbucket -> StreamOffset.ZERO)))
              .block(PATIENCE);
        } else {
          client.initializeState(StreamFrom.BEGINNING, StreamTo.INFINITY).block(PATIENCE);
          client.startStreaming().block(PATIENCE);
        }
        if (!DONE.await(PATIENCE.toSeconds(), TimeUnit.SECONDS)) {
          throw new IllegalStateException("only " + COUNT.get() + " of " + wanted + " came");
        }
      }
    }
    System.out.println(COUNT.get());
    System.exit(0);
  }

  private static void count(long wanted) {
    if (COUNT.incrementAndGet() == wanted) {
      DONE.countDown();
    }
  }

  private static void release(ChannelFlowController flow, ByteBuf event) {
    if (MessageUtil.requiresFlowControlAck(event)) {
      flow.ack(event);
    }
    event.release();
  }

  private record Listener(long wanted) implements DatabaseChangeListener {
    @Override
    public void onMutation(Mutation mutation) {
      count(wanted);
    }

    @Override
    public void onDeletion(Deletion deletion) {}

    @Override
    public void onFailure(StreamFailure failure) {
      failure.getCause().printStackTrace();
      System.exit(1);
    }
  }
}
