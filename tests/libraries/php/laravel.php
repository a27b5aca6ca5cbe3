<?php

// Laravel's components over this server: cache, locks, rate limits, queue, sessions, messages; with
// phpredis and with Predis.

use Illuminate\Cache\RateLimiter;
use Illuminate\Cache\RedisStore;
use Illuminate\Cache\Repository;
use Illuminate\Container\Container;
use Illuminate\Contracts\Redis\LimiterTimeoutException;
use Illuminate\Events\Dispatcher;
use Illuminate\Queue\RedisQueue;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;
use Illuminate\Redis\RedisManager;
use Illuminate\Session\CacheBasedSessionHandler;
use Illuminate\Session\Store;

require __DIR__ . '/did.php';
foreach (['Illuminate/Support', 'Illuminate/Redis', 'Illuminate/Cache', 'Illuminate/Queue', 'Illuminate/Session',
    'Illuminate/Container', 'Illuminate/Events', 'Predis'] as $part) {
    require_once "/usr/share/php/$part/autoload.php";
}

class Job
{
    public static array $ran = [];

    public function handle($job, array $data): void
    {
        self::$ran[] = $data['name'] . $job->attempts();
        if ($data['name'] === 'flaky' && $job->attempts() < 3) {
            throw new Exception('not yet');
        }
        $job->delete();
    }
}

class Quiet implements Illuminate\Contracts\Debug\ExceptionHandler
{
    public function report(Throwable $e)
    {
    }

    public function shouldReport(Throwable $e)
    {
        return false;
    }

    public function render($request, Throwable $e)
    {
    }

    public function renderForConsole($output, Throwable $e)
    {
    }
}

function cache(string $client, RedisManager $redis): void
{
    $cache = new Repository(new RedisStore($redis, "$client-cache:"));
    $cache->put('a', ['some' => 1], 60);
    same(['some' => 1], $cache->get('a'), 'the cache');
    same(false, $cache->add('a', 2, 60), 'add of a key that exists');
    same(true, $cache->add('b', 2, 60), 'add');
    same(5, $cache->increment('n', 5), 'increment');
    same(7, $cache->remember('r', 60, fn () => 7), 'remember');
    $cache->tags(['x', 'y'])->put('t', 1, 60);
    same(1, (int) $cache->tags(['x', 'y'])->get('t'), 'tags');
    $cache->tags('x')->flush();
    same(null, $cache->tags(['x', 'y'])->get('t'), 'flushed tags');
    $cache->put('short', 1, 1);

    $lock = $cache->lock('lock', 1);
    same(true, $lock->get(), 'the lock');
    $second = $cache->lock('lock', 10);
    same(false, $second->get(), 'a second owner');
    same(false, $second->release(), 'released by another');
    same(true, $second->block(5), 'the lock did not expire');
    same(false, $lock->release(), 'released after expiry');
    same(true, $second->release(), 'release');
    same(null, $cache->get('short'), 'expiry');

    $limiter = new RateLimiter($cache);
    $tries = array_map(fn () => $limiter->attempt('user', 2, fn () => true, 1), range(1, 3));
    same([true, true, false], $tries, 'the limit');
    sleep(2);
    same(true, $limiter->attempt('user', 2, fn () => true, 1), 'after the window');
    did("$client: cache, tags, locks, rate limiter");

    $ran = 0;
    $throttle = fn () => $redis->connection()->throttle("$client-t")->block(0)->allow(2)->every(1);
    foreach (range(1, 3) as $n) {
        $throttle()->then(function () use (&$ran) {
            $ran++;
        }, fn () => null);
    }
    same(2, $ran, 'throttle');
    $funnel = fn () => $redis->connection()->funnel("$client-f")->limit(1)->releaseAfter(5)->block(0);
    $funnel()->then(function () use ($funnel) {
        try {
            $funnel()->then(fn () => null);
            throw new Exception('two in a funnel of one');
        } catch (LimiterTimeoutException) {
        }
    });
    same('in', $funnel()->then(fn () => 'in'), 'the funnel');
    did("$client: throttle, funnel");

    $session = new Store('s', $handler = new CacheBasedSessionHandler($cache, 1));
    $session->start();
    $session->put('user', 'ann');
    $session->save();
    $again = new Store('s', $handler, $session->getId());
    $again->start();
    same('ann', $again->get('user'), 'the session');
    $again->invalidate();
    $gone = new Store('s', $handler, $session->getId());
    $gone->start();
    same(null, $gone->get('user'), 'a session that is no more');
    did("$client: sessions");
}

function queue(string $client, RedisManager $redis, Container $app): void
{
    Job::$ran = [];
    $queue = new RedisQueue($redis, "$client-work", null, 60);
    $queue->setContainer($app);
    $queue->setConnectionName('redis');
    $manager = new class($queue) {
        public function __construct(private $queue)
        {
        }

        public function connection()
        {
            return $this->queue;
        }

        public function getName()
        {
            return 'redis';
        }
    };
    $worker = new Worker(new Illuminate\Queue\QueueManager($app), $app['events'], new Quiet(), fn () => false);
    $property = new ReflectionProperty($worker, 'manager');
    $property->setValue($worker, $manager);
    $work = fn () => $worker->runNextJob('redis', "$client-work", new WorkerOptions('w', 0, 128, 60, 0, 5));

    $queue->push('Job@handle', ['name' => 'now']);
    $queue->bulk(['Job@handle', 'Job@handle'], ['name' => 'bulk']);
    same(3, $queue->size(), 'the length of the queue');
    $start = microtime(true);
    $queue->later(2, 'Job@handle', ['name' => 'late']);
    $queue->push('Job@handle', ['name' => 'flaky']);
    while (count(Job::$ran) < 7) {
        $work();
        check(microtime(true) - $start < 20, 'jobs are missing: ' . implode(' ', Job::$ran));
    }
    same(['now1', 'bulk1', 'bulk1', 'flaky1', 'flaky2', 'flaky3', 'late1'], Job::$ran, 'the jobs');
    check(microtime(true) - $start > 1, 'too early');
    same(0, $queue->size(), 'the queue');
    did("$client: queue, delay, retry");
}

foreach (['phpredis', 'predis'] as $client) {
    $app = Container::setInstance(new Container());
    $app->instance('events', new Dispatcher($app));
    $server = ['host' => HOST, 'port' => PORT, 'database' => 0];
    $redis = new RedisManager($app, $client, ['default' => $server]);
    cache($client, $redis);
    queue($client, $redis, $app);
}
