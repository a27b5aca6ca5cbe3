import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.protocol.ProtocolVersion;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisException;

/** The workload of a cluster, as tests/clients/README.md describes it, by Jedis and by Lettuce. */
public final class Cluster {
    private static final int WORKERS = 4;
    private static final int KEYS = 50;
    private static final long SAY_EVERY_NS = 100_000_000L;
    /** After an error. */
    private static final long REST_MS = 10;

    /** A client library. */
    private interface Client extends AutoCloseable {
        void set(String key, String value);

        String get(String key);

        @Override
        void close();
    }

    private static Client jedis(List<HostAndPort> nodes, boolean resp3) {
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder()
                .protocol(resp3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2)
                .build();
        JedisCluster cluster = new JedisCluster(new HashSet<>(nodes), config);
        return new Client() {
            @Override
            public void set(String key, String value) {
                cluster.set(key, value);
            }

            @Override
            public String get(String key) {
                return cluster.get(key);
            }

            @Override
            public void close() {
                cluster.close();
            }
        };
    }

    /** With the refreshing of the topology switched on, as Lettuce's manual says for clusters whose masters change. */
    private static Client lettuce(List<HostAndPort> nodes, boolean resp3) {
        List<RedisURI> uris = nodes.stream()
                .map(node -> RedisURI.create(node.getHost(), node.getPort()))
                .collect(Collectors.toList());
        RedisClusterClient client = RedisClusterClient.create(uris);
        ClusterTopologyRefreshOptions refresh = ClusterTopologyRefreshOptions.builder()
                .enableAllAdaptiveRefreshTriggers()
                .adaptiveRefreshTriggersTimeout(Duration.ofMillis(200))
                .enablePeriodicRefresh(Duration.ofSeconds(1))
                .build();
        client.setOptions(ClusterClientOptions.builder()
                .topologyRefreshOptions(refresh)
                .protocolVersion(resp3 ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2)
                .build());
        client.setDefaultTimeout(Duration.ofSeconds(3));
        StatefulRedisClusterConnection<String, String> connection = client.connect();
        return new Client() {
            @Override
            public void set(String key, String value) {
                connection.sync().set(key, value);
            }

            @Override
            public String get(String key) {
                return connection.sync().get(key);
            }

            @Override
            public void close() {
                connection.close();
                client.shutdown();
            }
        };
    }

    /** Of a key: the last value that was acknowledged, and those whose fate is unknown. */
    private static final class History {
        String last;
        final Set<String> unknown = new HashSet<>();
    }

    /** Writes its own keys again and again, and reads each back. */
    private static final class Worker extends Thread {
        final Client client;
        final int number;
        final Map<String, History> known = new LinkedHashMap<>();
        final Map<String, Integer> errors = new TreeMap<>();
        final List<String> wrong = new ArrayList<>();
        volatile boolean stop;
        long acknowledged;
        long failed;
        long gapNs;

        Worker(Client client, int number) {
            this.client = client;
            this.number = number;
            for (int key = 0; key < KEYS; key++) {
                known.put("worker" + number + ":" + key, new History());
            }
        }

        @Override
        public void run() {
            long sequence = 0;
            long passes = 0;
            long succeeded = System.nanoTime();
            long said = succeeded - SAY_EVERY_NS;
            while (!stop) {
                for (String key : known.keySet()) {
                    sequence++;
                    if (write(key, Long.toString(sequence))) {
                        long now = System.nanoTime();
                        gapNs = Math.max(gapNs, now - succeeded);
                        succeeded = now;
                    }
                }
                passes++;
                if (System.nanoTime() - said > SAY_EVERY_NS) {
                    said = System.nanoTime();
                    System.out.println("pass " + number + " " + passes + " " + failed);
                }
            }
        }

        private boolean write(String key, String value) {
            History history = known.get(key);
            try {
                client.set(key, value);
            } catch (RuntimeException error) {
                history.unknown.add(value);
                return count(error);
            }
            history.last = value;
            acknowledged++;
            return read(key);
        }

        private boolean read(String key) {
            History history = known.get(key);
            String found;
            try {
                found = client.get(key);
            } catch (RuntimeException error) {
                return count(error);
            }
            if (!Objects.equals(found, history.last) && !history.unknown.contains(found)) {
                wrong.add(key + ": found " + found + ", acknowledged " + history.last + ", unknown " + history.unknown);
            }
            return true;
        }

        private boolean count(Exception error) {
            String text = error.getClass().getSimpleName() + " " + error.getMessage();
            text = text.replaceAll("[\\p{Cntrl}\"\\\\]", " ");
            text = text.substring(0, Math.min(80, text.length()));
            if (errors.merge(text, 1, Integer::sum) == 1) {
                System.err.println(LocalTime.now() + " worker " + number + ": " + text);
            }
            failed++;
            try {
                Thread.sleep(REST_MS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            return false;
        }

        void check() throws InterruptedException {
            for (Map.Entry<String, History> entry : known.entrySet()) {
                while (entry.getValue().last != null && !read(entry.getKey())) {
                    Thread.sleep(100);
                }
            }
        }
    }

    private static String quoted(String text) {
        return "\"" + text + "\"";
    }

    public static void main(String[] arguments) throws Exception {
        List<HostAndPort> nodes = Arrays.stream(arguments[1].split(","))
                .map(HostAndPort::from)
                .collect(Collectors.toList());
        boolean resp3 = arguments[2].equals("3");
        boolean useLettuce = arguments[0].equals("lettuce");
        try (Client client = useLettuce ? lettuce(nodes, resp3) : jedis(nodes, resp3)) {
            List<Worker> workers = new ArrayList<>();
            for (int number = 0; number < WORKERS; number++) {
                workers.add(new Worker(client, number));
            }
            workers.forEach(Thread::start);
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            workers.forEach(worker -> worker.stop = true);
            Map<String, Integer> errors = new TreeMap<>();
            List<String> wrong = new ArrayList<>();
            long acknowledged = 0;
            long gapNs = 0;
            for (Worker worker : workers) {
                worker.join();
                worker.check();
                worker.errors.forEach((text, count) -> errors.merge(text, count, Integer::sum));
                wrong.addAll(worker.wrong);
                acknowledged += worker.acknowledged;
                gapNs = Math.max(gapNs, worker.gapNs);
            }
            String counts = errors.entrySet().stream()
                    .map(entry -> quoted(entry.getKey()) + ": " + entry.getValue())
                    .collect(Collectors.joining(", "));
            String wrongs = wrong.stream().map(Cluster::quoted).collect(Collectors.joining(", "));
            System.out.println("result {\"acknowledged\": " + acknowledged + ", \"errors\": {" + counts
                    + "}, \"wrong\": [" + wrongs + "], \"gap_ms\": " + gapNs / 1_000_000 + "}");
        }
    }
}
