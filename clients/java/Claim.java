import java.net.URI;
import java.net.http.*;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.concurrent.*;
import java.util.regex.*;

class Claim {
    static final HttpClient CLIENT = HttpClient.newHttpClient();

    /** Send a request until it is answered. The same request gets the same answer. */
    static HttpResponse<String> ask(String action, String body) throws InterruptedException {
        var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:8767/v1/shop/" + action))
            .header("Content-Type", "application/json").timeout(Duration.ofSeconds(30))
            .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        for (long pause = 100; ; pause = Math.min(2 * pause, 5000)) {
            try {
                var answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() < 500 && answer.statusCode() != 429) return answer;
            } catch (java.io.IOException lost) { // send it again
            }
            Thread.sleep(pause);
        }
    }

    public static void main(String[] arguments) throws Exception {
        byte[] random = new byte[16];
        new SecureRandom().nextBytes(random); // a new id for each claim
        String claim = "\"key\": \"" + arguments[0] + "\", \"id\": \"" + HexFormat.of().formatHex(random) + "\"";
        var won = ask("claim", "{" + claim + ", \"lease\": 30, \"wait\": 20}");
        if (won.statusCode() != 201) {
            System.out.println(won.statusCode() + " " + won.body());
            return;
        }
        Matcher fence = Pattern.compile("\"fence\":(\\d+)").matcher(won.body());
        fence.find();
        String mine = claim + ", \"fence\": " + fence.group(1);

        var timer = Executors.newSingleThreadScheduledExecutor();
        timer.scheduleAtFixedRate(() -> { // renew the claim while the work goes on
            try {
                if (ask("extend", "{" + mine + ", \"lease\": 30}").statusCode() == 410) System.exit(1); // lost: stop the work
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }, 10, 10, TimeUnit.SECONDS);
        String result = "{\"receipt\": 8}"; // the work
        timer.shutdownNow();

        var ended = ask("complete", "{" + mine + ", \"result\": " + result + "}");
        System.out.println(ended.statusCode() + " " + ended.body());
    }
}
