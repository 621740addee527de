// What the dearest functions of an expression cost: nanoseconds of a core for a byte of the content
// that is worst for each, by the code that Spark runs for it. The weights in
// backend/contracts/expression_functions.py are at least these. Run as `make bench-expressions`.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.expressions.json.GetJsonObjectEvaluator;
import org.apache.spark.sql.catalyst.expressions.json.JsonExpressionUtils;
import org.apache.spark.sql.catalyst.util.CollationSupport;
import org.apache.spark.unsafe.types.UTF8String;

public class ExpressionCosts {
  static final int BYTES = 60_000;
  static final int ROUNDS = 12;
  static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

  /** Prints the least time of a call, for each byte of a text that repeats the seed. */
  static void measure(String name, String seed, Function<UTF8String, Object> call) {
    UTF8String text = UTF8String.fromString(seed.repeat(BYTES / seed.getBytes(UTF_8).length));
    long least = Long.MAX_VALUE;
    for (int round = 0; round < ROUNDS; round++) {
      UTF8String copy = text.clone();
      long before = THREADS.getCurrentThreadCpuTime();
      call.apply(copy);
      least = Math.min(least, THREADS.getCurrentThreadCpuTime() - before);
    }
    System.out.printf("%-24s %8.1f ns for a byte%n", name, least / (double) BYTES);
  }

  public static void main(String[] arguments) {
    measure("upper", "\u00df", s -> CollationSupport.Upper.execBinaryICU(s));
    measure("lower", "\u03a3", s -> CollationSupport.Lower.execBinaryICU(s));
    measure("initcap", "\u0e01\u0e32\u0e23", s -> CollationSupport.InitCap.execBinaryICU(s));
    measure("split_part", ",", s -> s.splitSQL(UTF8String.fromString(","), -1));
    measure("substring_index", ",", s -> s.subStringIndex(UTF8String.fromString(","), 999999));
    measure("replace", ",", s -> s.replace(UTF8String.fromString(","), UTF8String.fromString("xx")));
    measure("reverse", "\u00e9", s -> s.reverse());
    measure("trim", "a", s -> s.trim(UTF8String.fromString("xa1")));
    measure("a step", "a", s -> Pattern.compile("^[^x]*$").matcher(s.toString()).find());
    String parts = "^[^\\p{Lu}\\p{Sc}\\p{Mn}b-cd-ef-gh-ij-k\\x{999}\\x{998}]*$";
    measure("a class of 10 parts", "a", s -> Pattern.compile(parts).matcher(s.toString()).find());
    String choices = "^(?:a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q|r|s|t)*+$";
    measure("20 choices", "t", s -> Pattern.compile(choices).matcher(s.toString()).find());
    measure("regexp_replace", "a", s -> UTF8String.fromString(replaced(s.toString())));
    measure("regexp_extract_all", "a", s -> extracted(s.toString()));
    measure("json_array_length", "1,", s -> JsonExpressionUtils.lengthOfJsonArray(
        UTF8String.fromString("[" + s + "1]")));
    measure("get_json_object, a star", "{\"a\":1},", s -> part("$.a[*].a", s));
    measure("get_json_object, a copy", "1,", s -> part("$.a", s));
    Map<String, String> letters = Map.of("a", "x", "b", "\u00e9");
    measure("translate", "a", s -> s.translate(letters));
    measure("url_encode", "\u00df", s -> URLEncoder.encode(s.toString(), UTF_8));
    measure("url_decode", "%41", s -> URLDecoder.decode(s.toString(), UTF_8));
  }

  static String replaced(String text) {
    Matcher matcher = Pattern.compile(".").matcher(text);
    StringBuilder result = new StringBuilder();
    while (matcher.find()) matcher.appendReplacement(result, "x");
    return matcher.appendTail(result).toString();
  }

  static List<UTF8String> extracted(String text) {
    Matcher matcher = Pattern.compile(".").matcher(text);
    List<UTF8String> result = new ArrayList<>();
    while (matcher.find()) result.add(UTF8String.fromString(matcher.toMatchResult().group(0)));
    return result;
  }

  static Object part(String path, UTF8String elements) {
    GetJsonObjectEvaluator evaluator = new GetJsonObjectEvaluator(UTF8String.fromString(path));
    evaluator.setJson(UTF8String.fromString("{\"a\":[" + elements + "1]}"));
    return evaluator.evaluate();
  }
}
