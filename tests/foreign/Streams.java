import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * A program that knows nothing of Topicproof: Kafka Streams squares every value of a topic, until it is told to end.
 *
 * <p>Arguments: bootstrap, source, sink, application id, processing guarantee, state folder, how many milliseconds a
 * value takes, and the topic for what is no number (without it, the program ends there).
 */
public class Streams {
  public static void main(String[] args) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", args[0]);
    settings.put("application.id", args[3]);
    settings.put("processing.guarantee", args[4]);
    settings.put("state.dir", args[5]);
    long pauseMs = Long.parseLong(args[6]);
    settings.put("auto.offset.reset", "earliest");
    settings.put("commit.interval.ms", "200");
    settings.put("producer.linger.ms", "0");
    // A successor waits until the group has forgotten who was killed, and until the transaction has expired.
    settings.put("session.timeout.ms", "6000");
    settings.put("heartbeat.interval.ms", "1000");
    settings.put("producer.transaction.timeout.ms", "5000");
    if (args.length > 7) {
      settings.put("errors.dead.letter.queue.topic.name", args[7]);
      settings.put(
          "processing.exception.handler", "org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler");
    }
    settings.put("default.key.serde", Serdes.StringSerde.class);
    settings.put("default.value.serde", Serdes.StringSerde.class);

    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(args[1]).mapValues(value -> {
      pause(pauseMs);
      long number = Long.parseLong(value);
      return Long.toString(number * number);
    }).to(args[2]);

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
