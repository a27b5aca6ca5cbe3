import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisAccessControlException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

/** The scenarios of tests/clients/README.md by Jedis. */
public final class Main extends Program {
    private final HostAndPort address;
    private final String resp;
    private final DefaultJedisClientConfig config;
    private final Jedis jedis;

    private Main(String host, int port, String resp) throws IOException, GeneralSecurityException {
        this.address = new HostAndPort(host, port);
        this.resp = resp;
        DefaultJedisClientConfig.Builder builder = DefaultJedisClientConfig.builder()
                .protocol(resp.equals("3") ? RedisProtocol.RESP3 : RedisProtocol.RESP2)
                .socketTimeoutMillis(20_000);
        String user = System.getenv("CLIENT_USER");
        if (user != null) {
            builder.user(user).password(System.getenv("CLIENT_PASSWORD"));
        }
        if (System.getenv("CLIENT_CA") != null) {
            SSLParameters parameters = new SSLParameters(null, new String[] {"TLSv1.3"});
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            builder.ssl(true).sslSocketFactory(sockets()).sslParameters(parameters);
        }
        this.config = builder.build();
        this.jedis = open();
    }

    /** Sockets that trust the authority of the environment, and show the client's certificate if it has one. */
    private static SSLSocketFactory sockets() throws IOException, GeneralSecurityException {
        KeyStore trusted = emptyStore();
        for (Certificate authority : certificates(System.getenv("CLIENT_CA"))) {
            trusted.setCertificateEntry("authority" + trusted.size(), authority);
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyStore own = emptyStore();
        if (System.getenv("CLIENT_CERT") != null) {
            Certificate[] chain = certificates(System.getenv("CLIENT_CERT")).toArray(new Certificate[0]);
            own.setKeyEntry("own", privateKey(System.getenv("CLIENT_KEY")), new char[0], chain);
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(own, new char[0]);
        SSLContext context = SSLContext.getInstance("TLSv1.3");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context.getSocketFactory();
    }

    private static KeyStore emptyStore() throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static Collection<? extends Certificate> certificates(String path) throws IOException, GeneralSecurityException {
        try (InputStream file = Files.newInputStream(Path.of(path))) {
            return CertificateFactory.getInstance("X.509").generateCertificates(file);
        }
    }

    private static PrivateKey privateKey(String path) throws IOException, GeneralSecurityException {
        String base64 = Files.readString(Path.of(path)).replaceAll("-----[A-Z ]+-----|\\s", "");
        return KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(Base64.getDecoder().decode(base64)));
    }

    private Jedis open() {
        return new Jedis(address, config);
    }

    @Override
    void connect() {
        equal(jedis.ping(), "PONG");
        check(jedis.clientInfo().contains("resp=" + resp), "wrong version of RESP: " + jedis.clientInfo());
    }

    @Override
    void strings() {
        equal(jedis.set("s", "1", SetParams.setParams().ex(100)), "OK");
        equal(jedis.set("s", "2", SetParams.setParams().nx()), null);
        equal(jedis.setGet("s", "3", SetParams.setParams().xx()), "1");
        equal(jedis.get("s"), "3");
        equal(jedis.append("s", "4"), 2L);
        equal(jedis.incrBy("s", 8), 42L);
        equal(jedis.mset("s1", "a", "s2", "b"), "OK");
        equal(jedis.mget("s1", "none", "s2"), Arrays.asList("a", null, "b"));
        equal(jedis.del("s", "s1", "s2", "none"), 3L);
        equal(jedis.get("s"), null);
    }

    @Override
    void pipeline() {
        List<Object> wanted = new ArrayList<>();
        Pipeline pipe = jedis.pipelined();
        for (int i = 0; i < 5000; i++) {
            pipe.set("p" + i, "" + i);
            pipe.get("p" + i);
            wanted.add("OK");
            wanted.add("" + i);
        }
        equal(pipe.syncAndReturnAll(), wanted);
    }

    @Override
    void transaction() {
        jedis.del("t");
        Transaction transaction = jedis.multi();
        transaction.set("t", "1");
        transaction.incr("t");
        Response<String> get = transaction.get("t");
        equal(transaction.exec(), Arrays.asList("OK", 2L, "2"));
        equal(get.get(), "2");
        transaction = jedis.multi();
        transaction.set("t", "9");
        equal(transaction.discard(), "OK");
        equal(jedis.get("t"), "2");
    }

    @Override
    void watch() {
        jedis.set("w", "1");
        jedis.watch("w");
        try (Jedis other = open()) {
            other.set("w", "2");
        }
        Transaction transaction = jedis.multi();
        transaction.set("w", "3");
        equal(transaction.exec(), null);
        equal(jedis.get("w"), "2");
        jedis.watch("w");
        transaction = jedis.multi();
        transaction.set("w", "4");
        equal(transaction.exec(), List.of("OK"));
        equal(jedis.get("w"), "4");
    }

    @Override
    void big() {
        byte[] key = "big".getBytes(StandardCharsets.UTF_8);
        byte[] value = everyByte(4096);
        equal(jedis.set(key, value), "OK");
        check(Arrays.equals(jedis.get(key), value), "the value came back changed");
    }

    @Override
    void binary() {
        byte[][] texts = {everyByte(1), "\r\n$5\r\n".getBytes(StandardCharsets.UTF_8), {0}};
        for (byte[] text : texts) {
            equal(jedis.set(text, text), "OK");
            check(Arrays.equals(jedis.get(text), text), "the value came back changed");
        }
        equal(jedis.set("empty", ""), "OK");
        equal(jedis.get("empty"), "");
    }

    @Override
    void expiry() {
        jedis.set("e", "1", SetParams.setParams().px(60));
        long deadline = System.nanoTime() + 10_000_000_000L;
        while (jedis.get("e") != null) {
            check(System.nanoTime() < deadline, "a key of 60 ms still lives after 10 s");
        }
        jedis.set("e", "1", SetParams.setParams().px(60_000));
        long left = jedis.pttl("e");
        check(left > 0 && left <= 60_000, "PTTL " + left);
        equal(jedis.persist("e"), 1L);
        equal(jedis.pttl("e"), -1L);
        equal(jedis.pttl("none"), -2L);
    }

    @Override
    void scan() {
        Set<String> wanted = new HashSet<>();
        Pipeline pipe = jedis.pipelined();
        for (int i = 0; i < 3000; i++) {
            wanted.add("scan:" + i);
            pipe.set("scan:" + i, "1");
        }
        pipe.sync();
        Set<String> found = new HashSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            ScanResult<String> result = jedis.scan(cursor, new ScanParams().match("scan:*").count(100));
            found.addAll(result.getResult());
            cursor = result.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        check(found.equals(wanted), "SCAN found " + found.size() + " of " + wanted.size());
    }

    @Override
    void errors() {
        jedis.set("text", "abc");
        List<Scenario> wrong = List.of(
                () -> jedis.incr("text"),
                () -> jedis.sendCommand(() -> "NO-SUCH-COMMAND".getBytes(StandardCharsets.UTF_8)));
        for (Scenario command : wrong) {
            try {
                command.run();
            } catch (JedisDataException expected) {
                continue;
            } catch (Exception other) {
                throw new AssertionError(other);
            }
            throw new AssertionError("a wrong command gave no error");
        }
        equal(jedis.get("text"), "abc");
    }

    @Override
    void denied() {
        try (Jedis own = open()) {
            for (Scenario command : List.<Scenario>of(() -> own.configGet("port"), () -> own.get("denied"))) {
                try {
                    command.run();
                } catch (JedisAccessControlException expected) {
                    check(expected.getMessage().startsWith("NOPERM"), expected.getMessage());
                    continue;
                } catch (Exception other) {
                    throw new AssertionError(other);
                }
                throw new AssertionError("a command outside of the rights was allowed");
            }
            equal(own.ping(), "PONG");
        }
    }

    @Override
    void concurrent() throws InterruptedException {
        jedis.del("count");
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            Thread thread = new Thread(() -> {
                try (Jedis own = open()) {
                    for (int j = 0; j < 250; j++) {
                        own.incr("count");
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        equal(jedis.get("count"), "2000");
    }

    /** A pool, because a single Jedis connection never reconnects by itself. */
    @Override
    void reconnect() throws Exception {
        try (JedisPooled pool = new JedisPooled(address, config)) {
            equal(pool.set("before", "1"), "OK");
            System.out.println("kill me");
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            long deadline = System.nanoTime() + 20_000_000_000L;
            while (true) {
                try {
                    equal(pool.set("after", "1"), "OK");
                    break;
                } catch (JedisConnectionException error) {
                    check(System.nanoTime() < deadline, "no connection 20 s after the restart");
                }
            }
            equal(pool.get("after"), "1");
        }
    }

    public static void main(String[] arguments) throws Exception {
        run(arguments, Main::new);
    }
}
