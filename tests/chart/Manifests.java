import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.introspect.Annotated;
import com.fasterxml.jackson.databind.introspect.JacksonAnnotationIntrospector;

/**
 * Reads manifests with the Kubernetes client that Spark brings, and fails at the first field that Kubernetes does not know
 * or that has another type. Input: a list of pairs of a class and a manifest, as JSON. Output: how many were read.
 */
public class Manifests {
  public static void main(String[] args) throws Exception {
    ObjectMapper mapper = new ObjectMapper().enable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES);
    // The client's classes would keep unknown fields in a map.
    mapper.setAnnotationIntrospector(
        new JacksonAnnotationIntrospector() {
          @Override
          public Boolean hasAnySetter(Annotated member) {
            return null;
          }
        });
    int read = 0;
    try {
      for (JsonNode pair : mapper.readTree(System.in)) {
        mapper.treeToValue(pair.get(1), Class.forName("io.fabric8.kubernetes.api.model." + pair.get(0).asText()));
        read++;
      }
    } finally {
      System.out.println(read);
    }
  }
}
