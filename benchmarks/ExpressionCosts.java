// What the dearest functions of an expression cost: nanoseconds of a core for a byte of the content
// that is worst for each, by the code that Spark runs for it. The weights in
// backend/contracts/expression_functions.py are at least these. Run as `make bench-expressions`.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.function.Function;
import java.util.regex.Pattern;
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
    measure("steps ^[^x]*$","a",s->Pattern.compile("^[^x]*$").matcher(s.toString()).find());
    measure("steps 11 parts","a",s->Pattern.compile("^[^\\p{Lu}\\p{Sc}\\p{Mn}b-cd-ef-gh-ij-k\\x{999}\\x{998}]*$").matcher(s.toString()).find());
    measure("steps group","a",s->Pattern.compile("^(?:[^xy])*+$").matcher(s.toString()).find());
    measure("steps alternatives 20","t",s->Pattern.compile("^(?:a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q|r|s|t)*+$").matcher(s.toString()).find());
    measure("regexp_replace","a",s->{ var t=s.toString(); var x=Pattern.compile(".").matcher(t); var b=new StringBuilder(); while(x.find()) x.appendReplacement(b,"x"); x.appendTail(b); return UTF8String.fromString(b.toString());});
    measure("extract_all","a",s->{ var t=s.toString(); var x=Pattern.compile(".").matcher(t); var b=new java.util.ArrayList<UTF8String>(); while(x.find()) b.add(UTF8String.fromString(x.toMatchResult().group(0))); return b;});
    measure("json_array_length","[1,".replace("[",""),s->org.apache.spark.sql.catalyst.expressions.json.JsonExpressionUtils.lengthOfJsonArray(UTF8String.fromString("["+s.toString()+"1]")));
    measure("get_json_object","{\"a\":1},",s->{var e=new org.apache.spark.sql.catalyst.expressions.json.GetJsonObjectEvaluator(UTF8String.fromString("$.a[*].a")); e.setJson(UTF8String.fromString("{\"a\":["+s.toString()+"1]}")); return e.evaluate();});
    measure("get_json_object copy","1,",s->{var e=new org.apache.spark.sql.catalyst.expressions.json.GetJsonObjectEvaluator(UTF8String.fromString("$.a")); e.setJson(UTF8String.fromString("{\"a\":["+s.toString()+"1]}")); return e.evaluate();});
  var dict=new java.util.HashMap<String,String>(); dict.put("a","x"); dict.put("b","\u00e9"); m("translate","a",s->s.translate(dict));
    measure("url_encode","\u00df",s->java.net.URLEncoder.encode(s.toString(),UTF_8)); m("url_decode","%41",s->java.net.URLDecoder.decode(s.toString(),UTF_8));
    measure("format %S","\u00df",s->UTF8String.fromString(String.format("%S",s.toString())));
  }
}
