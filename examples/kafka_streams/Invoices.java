import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * Turns orders into invoices, with Kafka Streams.
 *
 * <p>Arguments: bootstrap, source, sink, application id, state folder, and "bug" or "fixed".
 */
public class Invoices {
  public static void main(String[] args) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", args[0]);
    settings.put("application.id", args[3]);
    settings.put("state.dir", args[4]);
    settings.put("default.key.serde", Serdes.StringSerde.class);
    settings.put("default.value.serde", Serdes.StringSerde.class);
    settings.put("auto.offset.reset", "earliest");
    // A restarted member takes over at once, instead of after the session timeout.
    settings.put("group.instance.id", "1");
    if (args[5].equals("fixed")) {
      // Without this line, the default is at_least_once.
      settings.put("processing.guarantee", "exactly_once_v2");
      settings.put("commit.interval.ms", "100");
      // The killed one's transaction holds its successor up until it expires.
      settings.put("producer.transaction.timeout.ms", "4000");
    } else {
      settings.put("commit.interval.ms", "5000");
    }

    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(args[1]).mapValues(Invoices::invoice).to(args[2]);
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }

  private static String invoice(String order) {
    try {
      Thread.sleep(2); // what an invoice takes
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
    return "invoice of " + order;
  }
}
