import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.springframework.cache.Cache;
import org.springframework.data.geo.Point;
import org.springframework.data.redis.cache.RedisCacheConfiguration;
import org.springframework.data.redis.cache.RedisCacheManager;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.connection.stream.Consumer;
import org.springframework.data.redis.connection.stream.ReadOffset;
import org.springframework.data.redis.connection.stream.StreamOffset;
import org.springframework.data.redis.core.RedisCallback;
import org.springframework.data.redis.core.RedisOperations;
import org.springframework.data.redis.core.ScanOptions;
import org.springframework.data.redis.core.SessionCallback;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.data.redis.core.script.RedisScript;
import org.springframework.data.redis.listener.ChannelTopic;
import org.springframework.data.redis.listener.RedisMessageListenerContainer;

/** Spring Data Redis over Lettuce: templates, transactions, scripts, messages, streams, caches. */
final class SpringData {
    private static StringRedisTemplate template;
    private static LettuceConnectionFactory factory;

    public static void main(String[] arguments) {
        Did.main(() -> {
            factory = new LettuceConnectionFactory(new RedisStandaloneConfiguration(Did.HOST, Did.PORT));
            factory.afterPropertiesSet();
            factory.start();
            template = new StringRedisTemplate(factory);
            operations();
            transactions();
            messages();
            caches();
        });
    }

    private static void operations() {
        var values = template.opsForValue();
        values.set("a", "1", Duration.ofMinutes(1));
        Did.same(false, values.setIfAbsent("a", "2"));
        Did.same(42L, values.increment("a", 41));
        Did.check(template.getExpire("a") > 50, "no time to live");
        template.<String, String>opsForHash().putAll("hash", Map.of("x", "1", "y", "2"));
        Did.same(Map.of("x", "1", "y", "2"), template.opsForHash().entries("hash"));
        template.opsForList().rightPushAll("list", "a", "b");
        Did.same("a", template.opsForList().leftPop("list", Duration.ofSeconds(1)));
        template.opsForZSet().add("zset", "one", 1);
        template.opsForZSet().add("zset", "two", 2);
        Did.same(1L, template.opsForZSet().rank("zset", "two"));
        template.opsForGeo().add("geo", new Point(13.361389, 38.115556), "Palermo");
        template.opsForGeo().add("geo", new Point(15.087269, 37.502669), "Catania");
        Did.same(166274L, Math.round(template.opsForGeo().distance("geo", "Palermo", "Catania").getValue()));
        template.opsForHyperLogLog().add("hll", "a", "b", "c");
        Did.same(3L, template.opsForHyperLogLog().size("hll"));
        List<Object> replies = template.executePipelined((RedisCallback<Object>) connection -> {
            for (int n = 0; n < 1000; n++) {
                connection.stringCommands().set(("key:" + n).getBytes(), "v".getBytes());
            }
            return null;
        });
        Did.same(1000, replies.size());
        try (var keys = template.scan(ScanOptions.scanOptions().match("key:*").count(100).build())) {
            Did.same(1000L, keys.stream().distinct().count());
        }
        Did.did("values, hashes, lists, sorted sets, geo, pipeline, scan");
    }

    private static void transactions() {
        List<Object> done = template.execute(new SessionCallback<>() {
            @SuppressWarnings("unchecked")
            public List<Object> execute(RedisOperations operations) {
                operations.multi();
                operations.opsForValue().increment("n");
                operations.opsForValue().increment("n");
                return operations.exec();
            }
        });
        Did.same(List.of(1L, 2L), done);
        List<Object> lost = template.execute(new SessionCallback<>() {
            @SuppressWarnings("unchecked")
            public List<Object> execute(RedisOperations operations) {
                operations.watch("a");
                template.opsForValue().set("a", "changed");
                operations.multi();
                operations.opsForValue().set("a", "lost");
                return operations.exec();
            }
        });
        Did.check(lost.isEmpty(), "EXEC in spite of a change");
        Did.same("changed", template.opsForValue().get("a"));
        RedisScript<List> script = RedisScript.of("return {KEYS[1], ARGV[1]}", List.class);
        for (int n = 0; n < 2; n++) {
            Did.same(List.of("k", "v"), template.execute(script, List.of("k"), "v"));
        }
        Did.did("MULTI, WATCH, scripts");
    }

    private static void messages() throws Exception {
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        var container = new RedisMessageListenerContainer();
        container.setConnectionFactory(factory);
        container.addMessageListener((message, pattern) -> heard.add(message.toString()), new ChannelTopic("news"));
        container.afterPropertiesSet();
        container.start();
        Did.waitUntil("a listener", () -> template.convertAndSend("news", "hello") == 1);
        Did.same("hello", heard.poll(5, TimeUnit.SECONDS));
        container.stop();
        var streams = template.<String, String>opsForStream();
        var id = streams.add("stream", Map.of("f", "v"));
        streams.createGroup("stream", ReadOffset.from("0"), "g");
        var read = streams.read(Consumer.from("g", "c"), StreamOffset.create("stream", ReadOffset.lastConsumed()));
        Did.same(Map.of("f", "v"), read.get(0).getValue());
        Did.same(1L, streams.acknowledge("stream", "g", id));
        Did.did("listener, stream");
    }

    private static void caches() throws Exception {
        var defaults = RedisCacheConfiguration.defaultCacheConfig().entryTtl(Duration.ofMillis(500));
        var manager = RedisCacheManager.builder(factory).cacheDefaults(defaults).enableStatistics().build();
        Cache cache = manager.getCache("things");
        cache.put("a", "1");
        Did.same("1", cache.get("a", String.class));
        Did.same("1", cache.putIfAbsent("a", "2").get());
        Did.same("made", cache.get("b", () -> "made"));
        Thread.sleep(700);
        Did.check(cache.get("a") == null, "an entry did not expire");
        for (int n = 0; n < 100; n++) {
            cache.put(n, "v");
        }
        cache.clear();
        // Over Lettuce it clears in the background.
        Did.waitUntil("the cache is empty", () -> template.keys("things::*").isEmpty());
        Did.did("cache: put, expire, clear");
    }
}
