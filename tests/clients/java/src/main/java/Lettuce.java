import io.lettuce.core.ClientOptions;
import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanCursor;
import io.lettuce.core.SetArgs;
import io.lettuce.core.SslOptions;
import io.lettuce.core.SslVerifyMode;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandType;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/** The scenarios of tests/clients/README.md by Lettuce. */
public final class Lettuce extends Program {
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    private final String resp;
    private final RedisClient client;
    private final StatefulRedisConnection<String, String> connection;
    private final RedisCommands<String, String> redis;

    private Lettuce(String host, int port, String resp) {
        this.resp = resp;
        RedisURI.Builder uri = RedisURI.builder().withHost(host).withPort(port).withTimeout(PATIENCE);
        String user = System.getenv("CLIENT_USER");
        if (user != null) {
            uri.withAuthentication(user, System.getenv("CLIENT_PASSWORD").toCharArray());
        }
        ClientOptions.Builder options = ClientOptions.builder()
                .protocolVersion(resp.equals("3") ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2);
        if (System.getenv("CLIENT_CA") != null) {
            uri.withSsl(true).withVerifyPeer(SslVerifyMode.FULL);
            options.sslOptions(certificates());
        }
        this.client = RedisClient.create(uri.build());
        client.setOptions(options.build());
        this.connection = client.connect();
        this.redis = connection.sync();
    }

    /** Trusts the authority of the environment, and shows the client's certificate if it has one. */
    private static SslOptions certificates() {
        SslOptions.Builder tls = SslOptions.builder()
                .jdkSslProvider()
                .protocols("TLSv1.3")
                .trustManager(new File(System.getenv("CLIENT_CA")));
        if (System.getenv("CLIENT_CERT") != null) {
            tls.keyManager(new File(System.getenv("CLIENT_CERT")), new File(System.getenv("CLIENT_KEY")), new char[0]);
        }
        return tls.build();
    }

    @Override
    void connect() {
        equal(redis.ping(), "PONG");
        check(redis.clientInfo().contains("resp=" + resp), "wrong version of RESP: " + redis.clientInfo());
    }

    @Override
    void strings() {
        equal(redis.set("s", "1", SetArgs.Builder.ex(100)), "OK");
        equal(redis.set("s", "2", SetArgs.Builder.nx()), null);
        equal(redis.setGet("s", "3", SetArgs.Builder.xx()), "1");
        equal(redis.get("s"), "3");
        equal(redis.append("s", "4"), 2L);
        equal(redis.incrby("s", 8), 42L);
        equal(redis.mset(Map.of("s1", "a", "s2", "b")), "OK");
        List<String> values = redis.mget("s1", "none", "s2").stream()
                .map(found -> found.getValueOrElse(null))
                .collect(Collectors.toList());
        equal(values, Arrays.asList("a", null, "b"));
        equal(redis.del("s", "s1", "s2", "none"), 3L);
        equal(redis.get("s"), null);
    }

    @Override
    void pipeline() throws Exception {
        try (StatefulRedisConnection<String, String> own = client.connect()) {
            own.setAutoFlushCommands(false);
            RedisAsyncCommands<String, String> pipe = own.async();
            List<RedisFuture<String>> futures = new ArrayList<>();
            List<String> wanted = new ArrayList<>();
            for (int i = 0; i < 5000; i++) {
                futures.add(pipe.set("p" + i, "" + i));
                futures.add(pipe.get("p" + i));
                wanted.add("OK");
                wanted.add("" + i);
            }
            own.flushCommands();
            check(LettuceFutures.awaitAll(PATIENCE, futures.toArray(new RedisFuture<?>[0])), "not all replies came");
            List<String> found = new ArrayList<>();
            for (RedisFuture<String> future : futures) {
                found.add(future.get());
            }
            equal(found, wanted);
        }
    }

    @Override
    void transaction() {
        redis.del("t");
        redis.multi();
        redis.set("t", "1");
        redis.incr("t");
        redis.get("t");
        TransactionResult result = redis.exec();
        equal(result.stream().collect(Collectors.toList()), Arrays.asList("OK", 2L, "2"));
        redis.multi();
        redis.set("t", "9");
        equal(redis.discard(), "OK");
        equal(redis.get("t"), "2");
    }

    @Override
    void watch() {
        redis.set("w", "1");
        redis.watch("w");
        try (StatefulRedisConnection<String, String> other = client.connect()) {
            other.sync().set("w", "2");
        }
        redis.multi();
        redis.set("w", "3");
        check(redis.exec().wasDiscarded(), "EXEC ran though a watched key was changed");
        equal(redis.get("w"), "2");
        redis.watch("w");
        redis.multi();
        redis.set("w", "4");
        TransactionResult result = redis.exec();
        check(!result.wasDiscarded(), "EXEC failed without a change");
        equal(result.<String>get(0), "OK");
        equal(redis.get("w"), "4");
    }

    @Override
    void big() {
        comesBack("big".getBytes(StandardCharsets.UTF_8), everyByte(4096));
    }

    @Override
    void binary() {
        byte[][] texts = {everyByte(1), "\r\n$5\r\n".getBytes(StandardCharsets.UTF_8), {0}};
        for (byte[] text : texts) {
            comesBack(text, text);
        }
        equal(redis.set("empty", ""), "OK");
        equal(redis.get("empty"), "");
    }

    private void comesBack(byte[] key, byte[] value) {
        try (StatefulRedisConnection<byte[], byte[]> own = client.connect(ByteArrayCodec.INSTANCE)) {
            equal(own.sync().set(key, value), "OK");
            check(Arrays.equals(own.sync().get(key), value), "the value came back changed");
        }
    }

    @Override
    void expiry() {
        redis.set("e", "1", SetArgs.Builder.px(60));
        long deadline = System.nanoTime() + 10_000_000_000L;
        while (redis.get("e") != null) {
            check(System.nanoTime() < deadline, "a key of 60 ms still lives after 10 s");
        }
        redis.set("e", "1", SetArgs.Builder.px(60_000));
        long left = redis.pttl("e");
        check(left > 0 && left <= 60_000, "PTTL " + left);
        equal(redis.persist("e"), true);
        equal(redis.pttl("e"), -1L);
        equal(redis.pttl("none"), -2L);
    }

    @Override
    void scan() {
        Map<String, String> all = new LinkedHashMap<>();
        for (int i = 0; i < 3000; i++) {
            all.put("scan:" + i, "1");
        }
        equal(redis.mset(all), "OK");
        Set<String> found = new HashSet<>();
        ScanArgs arguments = ScanArgs.Builder.matches("scan:*").limit(100);
        KeyScanCursor<String> page = redis.scan(ScanCursor.INITIAL, arguments);
        found.addAll(page.getKeys());
        while (!page.isFinished()) {
            page = redis.scan(page, arguments);
            found.addAll(page.getKeys());
        }
        check(found.equals(all.keySet()), "SCAN found " + found.size() + " of " + all.size());
    }

    /** A command that no server has. */
    private enum Wrong implements ProtocolKeyword {
        COMMAND;

        @Override
        public byte[] getBytes() {
            return "NO-SUCH-COMMAND".getBytes(StandardCharsets.UTF_8);
        }
    }

    @Override
    void errors() {
        redis.set("text", "abc");
        refused("", () -> redis.incr("text"));
        refused("ERR unknown command", () -> redis.dispatch(Wrong.COMMAND, new StatusOutput<>(StringCodec.UTF8)));
        equal(redis.get("text"), "abc");
    }

    @Override
    void denied() {
        refused("NOPERM", () -> redis.configGet("port"));
        refused("NOPERM", () -> redis.get("denied"));
        refused("NOPERM", () -> redis.dispatch(CommandType.FLUSHALL, new StatusOutput<>(StringCodec.UTF8)));
        equal(redis.ping(), "PONG");
    }

    /** The command gives an error reply that begins so. */
    private static void refused(String begin, Scenario command) {
        try {
            command.run();
        } catch (RedisCommandExecutionException expected) {
            check(expected.getMessage().startsWith(begin), expected.getMessage());
            return;
        } catch (Exception other) {
            throw new AssertionError(other);
        }
        throw new AssertionError("a command gave no error; wanted " + begin);
    }

    @Override
    void concurrent() throws InterruptedException {
        redis.del("count");
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            Thread thread = new Thread(() -> {
                try (StatefulRedisConnection<String, String> own = client.connect()) {
                    for (int j = 0; j < 250; j++) {
                        own.sync().incr("count");
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        equal(redis.get("count"), "2000");
    }

    @Override
    void reconnect() throws Exception {
        equal(redis.set("before", "1"), "OK");
        System.out.println("kill me");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (true) {
            try {
                equal(redis.set("after", "1"), "OK");
                break;
            } catch (RedisException error) {
                check(System.nanoTime() < deadline, "no connection 20 s after the restart");
            }
        }
        equal(redis.get("after"), "1");
    }

    public static void main(String[] arguments) throws Exception {
        run(arguments, Lettuce::new);
        System.exit(0); // Lettuce's threads would keep the program
    }
}
