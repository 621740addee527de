import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Turns orders into invoices, with Kafka's Java clients.
 *
 * <p>Arguments: bootstrap, source, sink, group, and "bug" or "fixed".
 */
public class Invoices {
  public static void main(String[] args) throws InterruptedException {
    String source = args[1], sink = args[2], group = args[3];
    boolean fixed = args[4].equals("fixed");

    Properties reading = new Properties();
    reading.put("bootstrap.servers", args[0]);
    reading.put("group.id", group);
    // A restarted member takes over at once, instead of after the session timeout.
    reading.put("group.instance.id", "1");
    reading.put("auto.offset.reset", "earliest");
    reading.put("enable.auto.commit", "false");
    reading.put("max.poll.records", "50");
    reading.put("key.deserializer", StringDeserializer.class);
    reading.put("value.deserializer", StringDeserializer.class);

    Properties writing = new Properties();
    writing.put("bootstrap.servers", args[0]);
    writing.put("key.serializer", StringSerializer.class);
    writing.put("value.serializer", StringSerializer.class);
    if (fixed) {
      writing.put("transactional.id", group);
    }

    KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading);
    KafkaProducer<String, String> producer = new KafkaProducer<>(writing);
    if (fixed) {
      producer.initTransactions();
    }
    consumer.subscribe(List.of(source));
    while (true) {
      ConsumerRecords<String, String> orders = consumer.poll(Duration.ofMillis(200));
      if (orders.isEmpty()) {
        continue;
      }
      if (fixed) {
        producer.beginTransaction();
      } else {
        // The bug: what is not written yet is already behind the group's offset.
        consumer.commitSync();
      }
      Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
      for (ConsumerRecord<String, String> order : orders) {
        Thread.sleep(2); // what an invoice takes
        producer.send(new ProducerRecord<>(sink, order.key(), "invoice of " + order.value()));
        next.put(new TopicPartition(order.topic(), order.partition()), new OffsetAndMetadata(order.offset() + 1));
      }
      producer.flush();
      if (fixed) {
        producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
        producer.commitTransaction();
      }
    }
  }
}
