"""python-redis-lock: locks whose waiters are signalled, with renewal."""

import threading
import time

import redis
import redis_lock
from did import HOST, PORT, did, raises

client = redis.Redis(HOST, PORT)

lock = redis_lock.Lock(client, "lock", expire=10)
assert lock.acquire(blocking=False)
other = redis_lock.Lock(client, "lock", expire=10)
assert not other.acquire(blocking=False), "two owners"
raises(redis_lock.NotAcquired, other.release)
timer = threading.Timer(0.5, lock.release)
timer.start()
start = time.monotonic()
assert other.acquire(timeout=10)
assert 0.3 < time.monotonic() - start < 5
other.release()
did("contend, a waiter is signalled, release")

short = redis_lock.Lock(client, "short", expire=1)
assert short.acquire()
second = redis_lock.Lock(client, "short", expire=10)
assert second.acquire(timeout=2), "the lock did not expire"
raises(redis_lock.NotAcquired, short.release)
did("expiry")

with redis_lock.Lock(client, "renewed", expire=1, auto_renewal=True):
    time.sleep(2)
    assert not redis_lock.Lock(client, "renewed").acquire(blocking=False), "not renewed"
did("renewal")

assert redis_lock.Lock(client, "left", expire=100).acquire()
redis_lock.reset_all(client)
assert redis_lock.Lock(client, "left", expire=100).acquire(blocking=False)
did("reset_all")
