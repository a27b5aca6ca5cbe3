<?php

// phpredis: commands, serialisers, pipelines, transactions, scripts, and PHP's sessions.

require __DIR__ . '/did.php';

$redis = new Redis();
$redis->connect(HOST, PORT, 5);
same(true, $redis->set('a', '1', ['nx', 'ex' => 60]), 'SET NX EX');
same(false, $redis->set('a', '2', ['nx']), 'SET NX of a key that exists');
same(42, $redis->incrBy('a', 41), 'INCRBY');
check($redis->ttl('a') > 0, 'no time to live');
$redis->hMSet('hash', ['x' => 1, 'y' => 2]);
same(['x' => '1', 'y' => '2'], $redis->hGetAll('hash'), 'HGETALL');
$redis->zAdd('zset', 1, 'one', 2.5, 'two');
same(['one' => 1.0, 'two' => 2.5], $redis->zRange('zset', 0, -1, true), 'ZRANGE WITHSCORES');
$redis->rPush('list', 'a', 'b');
same(['list', 'a'], $redis->blPop(['list'], 1), 'BLPOP');
$id = $redis->xAdd('stream', '*', ['f' => 'v']);
$redis->xGroup('CREATE', 'stream', 'g', '0');
same(['stream' => [$id => ['f' => 'v']]], $redis->xReadGroup('g', 'c', ['stream' => '>']), 'XREADGROUP');
same(1, $redis->xAck('stream', 'g', [$id]), 'XACK');
same(false, $redis->lPush('a', 'x'), 'LPUSH to a string');
check(str_starts_with($redis->getLastError(), 'WRONGTYPE'), $redis->getLastError());
did('commands, stream, error');

$redis->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP);
$redis->setOption(Redis::OPT_PREFIX, 'prefix:');
$redis->set('object', ['deep' => [1, 2.5, null]]);
same(['deep' => [1, 2.5, null]], $redis->get('object'), 'an object');
$redis->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_NONE);
$redis->setOption(Redis::OPT_PREFIX, '');
same(1, $redis->exists('prefix:object'), 'EXISTS');
$pipe = $redis->multi(Redis::PIPELINE);
for ($n = 0; $n < 1000; $n++) {
    $pipe->set("key:$n", $n);
}
same(1000, count(array_filter($pipe->exec())), 'a pipeline');
$redis->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
$cursor = null;
$found = [];
while ($keys = $redis->scan($cursor, 'key:*', 100)) {
    array_push($found, ...$keys);
}
same(1000, count(array_unique($found)), 'SCAN');
did('serialiser, prefix, pipeline, scan');

same([1, 2], $redis->multi()->incr('n')->incr('n')->exec(), 'MULTI');
$other = new Redis();
$other->connect(HOST, PORT, 5);
$redis->watch('a');
$other->set('a', 'changed');
same(false, $redis->multi()->set('a', 'lost')->exec(), 'EXEC in spite of a change');
same(['k', 'v'], $redis->eval('return {KEYS[1], ARGV[1]}', ['k', 'v'], 1), 'EVAL');
$sha = $redis->script('load', "return redis.call('INCR', KEYS[1])");
same(3, $redis->evalSha($sha, ['n'], 1), 'EVALSHA');
did('MULTI, WATCH, scripts');

ini_set('session.save_handler', 'redis');
ini_set('session.save_path', 'tcp://' . HOST . ':' . PORT);
ini_set('session.use_cookies', '0');
ini_set('session.cache_limiter', '');
ini_set('session.gc_maxlifetime', '2');
ini_set('redis.session.locking_enabled', '1');
session_id('abc');
session_start();
$_SESSION['user'] = 'ann';
same(1, $redis->exists('PHPREDIS_SESSION:abc_LOCK'), 'the lock of a session');
session_write_close();
same(0, $redis->exists('PHPREDIS_SESSION:abc_LOCK'), 'the lock after the session');
$_SESSION = [];
session_start();
$user = $_SESSION['user'] ?? null;
session_write_close();
sleep(3);
session_start();
$late = $_SESSION['user'] ?? null;
session_destroy();
same('ann', $user, 'the session');
same(null, $late, 'an expired session');
did('sessions with locks: create, read, expire');
