"""pottery: Redlock over this server, and its other synchronised objects."""

import time

import pottery
import redis
from did import HOST, PORT, did, raises

masters = {redis.Redis(HOST, PORT, db=db) for db in (0, 1, 2)}
[first_db, *_] = masters

lock = pottery.Redlock(key="lock", masters=masters, auto_release_time=10)
assert lock.acquire(blocking=False)
other = pottery.Redlock(key="lock", masters=masters, auto_release_time=10)
assert not other.acquire(blocking=False), "two owners"
assert 5 < lock.locked() <= 10
lock.extend()
raises(pottery.ReleaseUnlockedLock, other.release)
lock.release()
assert other.acquire(blocking=False)
other.release()
did("Redlock over 3 databases: contend, extend, release")

short = pottery.Redlock(key="short", masters=masters, auto_release_time=0.3)
assert short.acquire(blocking=False)
time.sleep(0.6)
assert not short.locked()
assert pottery.Redlock(key="short", masters=masters, auto_release_time=10).acquire(timeout=2)
did("expiry")

ids = pottery.NextID(key="ids", masters=masters)
assert [next(ids) for _ in range(5)] == [1, 2, 3, 4, 5]
did("NextID")

numbers = pottery.RedisDict({"a": 1}, redis=first_db, key="dict")
numbers["b"] = [2]
assert dict(numbers) == {"a": 1, "b": [2]}
deque = pottery.RedisDeque(range(5), redis=first_db, key="deque", maxlen=5)
deque.append(5)
assert list(deque) == [1, 2, 3, 4, 5]
counter = pottery.RedisCounter("hello", redis=first_db, key="counter")
assert counter.most_common(1) == [("l", 2)]
bloom = pottery.BloomFilter(num_elements=100, false_positives=0.01, redis=first_db, key="bloom")
bloom.update(["x", "y"])
assert "x" in bloom and "z" not in bloom
did("dict, deque, counter, Bloom filter")
