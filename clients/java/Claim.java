import java.net.URI;
import java.net.http.*;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.concurrent.*;
import java.util.regex.*;

class Claim {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static volatile long until; // when the lease is over, on the clock of System.nanoTime()

    /** Send a request until it is answered. The same request gets the same answer. */
    static HttpResponse<String> ask(String action, String body) throws InterruptedException {
        var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:8767/v1/shop/" + action))
            .header("Content-Type", "application/json").timeout(Duration.ofSeconds(30))
            .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        for (long pause = 100; ; pause = Math.min(2 * pause, 5000)) {
            try {
                long sent = System.nanoTime();
                var answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
                int status = answer.statusCode();
                Matcher lease = Pattern.compile("\"lease\":([-+.0-9e]+)").matcher(answer.body());
                if (status < 300 && lease.find()) until = sent + (long) (1e9 * Double.parseDouble(lease.group(1)));
                if (status < 500 && status != 408 && status != 429) return answer;
            } catch (java.io.IOException lost) { // send it again
            }
            Thread.sleep(pause);
        }
    }

    public static void main(String[] arguments) throws Exception {
        byte[] random = new byte[16];
        new SecureRandom().nextBytes(random); // a new id for each claim
        String key = arguments[0].replace("\\", "\\\\").replace("\"", "\\\"");
        String claim = "\"key\": \"" + key + "\", \"id\": \"" + HexFormat.of().formatHex(random) + "\"";
        var won = ask("claim", "{" + claim + ", \"lease\": 30, \"wait\": 20}");
        if (won.statusCode() != 201 || !says(won, "claimed") || System.nanoTime() - until >= 0) end(won);
        Matcher fence = Pattern.compile("\"fence\":(\\d+)").matcher(won.body());
        fence.find();
        String mine = claim + ", \"fence\": " + fence.group(1);

        var timers = Executors.newScheduledThreadPool(2);
        timers.scheduleAtFixedRate(() -> { // renew the claim while the work goes on
            try {
                if (ask("extend", "{" + mine + ", \"lease\": 30}").statusCode() == 410) System.exit(1); // lost: stop the work
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }, 10, 10, TimeUnit.SECONDS);
        timers.scheduleAtFixedRate(() -> { // another client can take the key, so stop the work
            if (System.nanoTime() - until >= 0) System.exit(1);
        }, 0, 100, TimeUnit.MILLISECONDS);
        String result = "{\"receipt\": 8}"; // the work
        timers.shutdownNow();

        var ended = ask("complete", "{" + mine + ", \"result\": " + result + "}");
        if (ended.statusCode() == 400 || ended.statusCode() == 413) // the work is done all the same
            ended = ask("complete", "{" + mine + ", \"no_result\": \"the service does not take it\"}");
        end(ended);
    }

    /** End with status 0 only if the work is done and recorded. */
    static void end(HttpResponse<String> answer) {
        System.out.println(answer.statusCode() + " " + answer.body());
        System.exit(answer.statusCode() == 200 && says(answer, "completed") ? 0 : 1);
    }

    static boolean says(HttpResponse<String> answer, String outcome) { // else it is not the service's, such as a proxy's page
        return answer.body().contains("\"outcome\":\"" + outcome + "\"");
    }
}
