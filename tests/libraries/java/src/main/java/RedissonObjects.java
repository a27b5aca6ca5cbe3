import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.*;
import org.redisson.api.options.LocalCachedMapOptions;
import org.redisson.api.stream.StreamAddArgs;
import org.redisson.api.stream.StreamCreateGroupArgs;
import org.redisson.api.stream.StreamReadGroupArgs;
import org.redisson.client.RedisException;
import org.redisson.client.codec.IntegerCodec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.CompositeCodec;
import org.redisson.config.Config;

/** Redisson: objects, locks, queues, rate limits, messages, local caches, batches, scripts. */
final class RedissonObjects {
    private static RedissonClient client;

    public static void main(String[] arguments) {
        Did.main(() -> {
            client = open();
            objects();
            locks();
            queues();
            limits();
            messages();
            batches();
        });
    }

    private static RedissonClient open() {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + Did.HOST + ":" + Did.PORT);
        config.setLockWatchdogTimeout(1500);
        return Redisson.create(config);
    }

    private static void objects() throws Exception {
        RBucket<Map<String, Integer>> bucket = client.getBucket("bucket");
        bucket.set(Map.of("a", 1), Duration.ofSeconds(60));
        Did.same(Map.of("a", 1), bucket.get());
        Did.check(bucket.remainTimeToLive() > 50_000, "no time to live");
        Did.check(bucket.compareAndSet(Map.of("a", 1), Map.of("a", 2)), "not set");
        var codec = new CompositeCodec(StringCodec.INSTANCE, IntegerCodec.INSTANCE);
        RMap<String, Integer> map = client.getMap("map", codec);
        map.put("x", 1);
        Did.same(1, map.putIfAbsent("x", 2));
        Did.same(6, map.addAndGet("x", 5));
        for (int n = 0; n < 500; n++) {
            map.fastPut("key" + n, n);
        }
        Did.same(501, map.readAllMap().size());
        Did.same(501, (int) map.keySet().stream().distinct().count());
        RMapCache<String, String> cache = client.getMapCache("cache");
        cache.put("short", "v", 300, TimeUnit.MILLISECONDS);
        cache.put("long", "v", 1, TimeUnit.MINUTES);
        Did.same("v", cache.get("short"));
        Thread.sleep(400);
        Did.check(cache.get("short") == null && cache.get("long") != null, "an entry did not expire");
        RScoredSortedSet<String> ranks = client.getScoredSortedSet("ranks");
        ranks.addAll(Map.of("a", 3.0, "b", 1.0, "c", 2.0));
        Did.same(List.of("b", "c", "a"), List.copyOf(ranks.readAll()));
        RSet<String> set = client.getSet("set");
        set.addAll(Set.of("a", "b"));
        Did.same(Set.of("a", "b"), set.readAll());
        RBloomFilter<String> bloom = client.getBloomFilter("bloom");
        bloom.tryInit(1000, 0.01);
        bloom.add("in");
        Did.check(bloom.contains("in") && !bloom.contains("out"), "the Bloom filter errs");
        Did.same(10L, client.getAtomicLong("count").addAndGet(10));
        Did.did("buckets, maps, caches, sets, Bloom filter");
    }

    private static void locks() throws Exception {
        RLock lock = client.getLock("lock");
        lock.lock();
        lock.lock();
        RedissonClient second = open();
        RLock other = second.getLock("lock");
        Did.check(!other.tryLock(), "two owners");
        Did.raises(IllegalMonitorStateException.class, () -> {
            other.unlock();
            return null;
        });
        // Longer than its time to live: the watchdog renews it.
        Thread.sleep(2500);
        Did.check(!other.tryLock(), "not renewed");
        CompletableFuture<Boolean> waiting = CompletableFuture.supplyAsync(() -> {
            try {
                return other.tryLock(10, 1, TimeUnit.SECONDS);
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
        });
        Thread.sleep(200);
        lock.unlock();
        Did.check(lock.isLocked() && !waiting.isDone(), "released too early");
        lock.unlock();
        Did.check(waiting.get(), "the waiter was not told");
        // The second owner's time to live is over.
        Did.check(lock.tryLock(5, 5, TimeUnit.SECONDS), "the lock did not expire");
        lock.unlock();

        AtomicInteger inside = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        Thread[] threads = new Thread[8];
        for (int n = 0; n < threads.length; n++) {
            RLock fair = (n % 2 == 0 ? client : second).getFairLock("fair");
            threads[n] = new Thread(() -> {
                fair.lock();
                most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                inside.decrementAndGet();
                fair.unlock();
            });
            threads[n].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Did.same(1, most.get());
        RReadWriteLock shared = client.getReadWriteLock("shared");
        shared.readLock().lock();
        Did.check(second.getReadWriteLock("shared").readLock().tryLock(), "one reader only");
        Did.check(!second.getReadWriteLock("shared").writeLock().tryLock(), "a writer beside readers");
        RSemaphore semaphore = client.getSemaphore("semaphore");
        semaphore.trySetPermits(2);
        Did.check(semaphore.tryAcquire(2) && !semaphore.tryAcquire(), "three permits of two");
        RCountDownLatch latch = client.getCountDownLatch("latch");
        latch.trySetCount(1);
        second.getCountDownLatch("latch").countDown();
        Did.check(latch.await(5, TimeUnit.SECONDS), "the latch is shut");
        second.shutdown();
        Did.did("locks: contend, renew, wait, expire; fair, read and write; semaphore, latch");
    }

    private static void queues() throws Exception {
        RBlockingQueue<String> queue = client.getBlockingQueue("queue");
        CompletableFuture<String> taken = queue.pollAsync(10, TimeUnit.SECONDS).toCompletableFuture();
        queue.add("item");
        Did.same("item", taken.get(10, TimeUnit.SECONDS));
        RDelayedQueue<String> delayed = client.getDelayedQueue(queue);
        long start = System.nanoTime();
        delayed.offer("late", 1, TimeUnit.SECONDS);
        Did.same("late", queue.poll(10, TimeUnit.SECONDS));
        Did.check(System.nanoTime() - start > 900_000_000L, "too early");
        RPriorityQueue<Integer> priorities = client.getPriorityQueue("priorities");
        priorities.addAll(List.of(3, 1, 2));
        Did.same(1, priorities.poll());
        RStream<String, String> stream = client.getStream("stream");
        stream.createGroup(StreamCreateGroupArgs.name("g").makeStream());
        var id = stream.add(StreamAddArgs.entry("f", "v"));
        var read = stream.readGroup("g", "c", StreamReadGroupArgs.neverDelivered());
        Did.same(Map.of(id, Map.of("f", "v")), read);
        Did.same(1L, stream.ack("g", id));
        Did.did("queues: wait, delay, priorities; stream");
    }

    private static void limits() throws Exception {
        RRateLimiter limiter = client.getRateLimiter("limiter");
        Did.check(limiter.trySetRate(RateType.OVERALL, 3, Duration.ofSeconds(1)), "the rate is set");
        for (int n = 0; n < 3; n++) {
            Did.check(limiter.tryAcquire(), "limited too early");
        }
        Did.check(!limiter.tryAcquire(), "not limited");
        Did.check(limiter.tryAcquire(1, Duration.ofSeconds(5)), "still limited");
        Did.did("rate limiter");
    }

    private static void messages() throws Exception {
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        client.getTopic("news").addListener(String.class, (channel, message) -> heard.add(message));
        client.getPatternTopic("new*").addListener(String.class, (pattern, channel, message) -> heard.add(message));
        Did.same(2L, client.getTopic("news").publish("hello"));
        Did.same("hello", heard.poll(5, TimeUnit.SECONDS));
        Did.same("hello", heard.poll(5, TimeUnit.SECONDS));
        LocalCachedMapOptions<String, String> options = LocalCachedMapOptions.name("near");
        RLocalCachedMap<String, String> here = client.getLocalCachedMap(options);
        RLocalCachedMap<String, String> there = open().getLocalCachedMap(options);
        here.put("a", "1");
        Did.same("1", there.get("a"));
        here.put("a", "2");
        Did.waitUntil("the other cache is invalidated", () -> "2".equals(there.get("a")));
        Did.did("topics, local caches");
    }

    private static void batches() throws Exception {
        var atomic = BatchOptions.defaults().executionMode(BatchOptions.ExecutionMode.IN_MEMORY_ATOMIC);
        RBatch batch = client.createBatch(atomic);
        batch.getAtomicLong("n").incrementAndGetAsync();
        batch.getAtomicLong("n").incrementAndGetAsync();
        Did.same(List.of(1L, 2L), batch.execute().getResponses());
        RTransaction transaction = client.createTransaction(TransactionOptions.defaults());
        transaction.getMap("tx").put("a", "1");
        Did.check(client.getMap("tx").isEmpty(), "visible before the commit");
        transaction.commit();
        Did.same("1", client.getMap("tx").get("a"));
        RScript script = client.getScript(StringCodec.INSTANCE);
        String sha = script.scriptLoad("return {KEYS[1], ARGV[1]}");
        List<Object> reply = script.evalSha(RScript.Mode.READ_ONLY, sha, RScript.ReturnType.LIST, List.of("k"), "v");
        Did.same(List.of("k", "v"), reply);
        Did.raises(RedisException.class,
            () -> script.eval(RScript.Mode.READ_WRITE, "return nothing()", RScript.ReturnType.VALUE));
        Did.did("batch, transaction, scripts");
    }
}
