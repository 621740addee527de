import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * A program that knows nothing of Topicproof: Kafka Streams counts the records of each key, and writes each count, until
 * it is told to end.
 *
 * <p>Arguments: bootstrap, source, sink, application id, processing guarantee, state folder, and how many milliseconds a
 * record takes.
 */
public class Counts {
  public static void main(String[] args) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", args[0]);
    settings.put("application.id", args[3]);
    settings.put("processing.guarantee", args[4]);
    settings.put("state.dir", args[5]);
    long pauseMs = Long.parseLong(args[6]);
    settings.put("auto.offset.reset", "earliest");
    settings.put("commit.interval.ms", "200");
    // Each update is written, not only the last one before a commit.
    settings.put("statestore.cache.max.bytes", "0");
    // A successor waits until the group has forgotten who was killed, and until the transaction has expired.
    settings.put("session.timeout.ms", "6000");
    settings.put("heartbeat.interval.ms", "1000");
    settings.put("producer.transaction.timeout.ms", "5000");
    settings.put("default.key.serde", Serdes.StringSerde.class);
    settings.put("default.value.serde", Serdes.StringSerde.class);

    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(args[1])
        .peek((key, value) -> pause(pauseMs))
        .groupByKey()
        .count(
            Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long()))
        .toStream()
        .to(args[2], Produced.with(Serdes.String(), Serdes.Long()));

    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }

  private static void pause(long ms) {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
  }
}
