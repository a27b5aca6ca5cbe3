"""redis-py's Lock, and its asyncio form."""

import asyncio
import threading
import time

import redis
import redis.asyncio
from did import HOST, PORT, did, raises

client = redis.Redis(HOST, PORT)


def release_of_another():
    other = client.lock("lock", timeout=10)
    other.local.token = b"not the token"
    other.release()


lock = client.lock("lock", timeout=10)
assert lock.acquire(blocking=False)
assert not client.lock("lock", timeout=10).acquire(blocking=False), "two owners"
raises(redis.exceptions.LockNotOwnedError, release_of_another)
lock.release()
assert client.get("lock") is None
did("acquire, contend, release")

counter = {"inside": 0, "most": 0, "total": 0}


def contend():
    for _ in range(20):
        with client.lock("busy", timeout=10, sleep=0.002):
            counter["inside"] += 1
            counter["most"] = max(counter["most"], counter["inside"])
            counter["total"] += 1
            counter["inside"] -= 1


threads = [threading.Thread(target=contend) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert counter == {"inside": 0, "most": 1, "total": 80}, counter
did("4 threads, one inside")

short = client.lock("short", timeout=0.2)
short.acquire()
start = time.monotonic()
second = client.lock("short", timeout=10, blocking_timeout=5)
assert second.acquire(), "the lock did not expire"
assert 0.1 < time.monotonic() - start < 3
raises(redis.exceptions.LockError, short.release)
did("expiry")

second.extend(20)
assert 25_000 < client.pttl("short") <= 30_000, client.pttl("short")
second.extend(5, replace_ttl=True)
assert client.pttl("short") <= 5_000
second.reacquire()
assert 5_000 < client.pttl("short") <= 10_000
second.release()
did("extend, reacquire")


async def asynchronous():
    async with redis.asyncio.Redis(host=HOST, port=PORT) as aio:
        async with aio.lock("aio", timeout=10):
            assert not await aio.lock("aio", timeout=10).acquire(blocking=False)
        assert await aio.get("aio") is None


asyncio.run(asynchronous())
did("asyncio")
