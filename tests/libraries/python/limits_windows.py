"""limits: each strategy reaches its limit, and lets through again when the window is over."""

import asyncio
import time

import limits
import limits.aio
from did import HOST, PORT, URL, did

storage = limits.storage.storage_from_string(URL)
assert storage.check()
three = limits.parse("3 per 2 second")
strategies = limits.strategies

for kind in (
    strategies.FixedWindowRateLimiter,
    strategies.MovingWindowRateLimiter,
    strategies.SlidingWindowCounterRateLimiter,
):
    limiter = kind(storage)
    # From the start of a fixed window on.
    time.sleep(2 - time.time() % 2 + 0.01)
    answers = [limiter.hit(three, kind.__name__, "user") for _ in range(5)]
    assert answers == [True, True, True, False, False], (kind, answers)
    assert not limiter.test(three, kind.__name__, "user")
    assert limiter.hit(three, kind.__name__, "another user")
    stats = limiter.get_window_stats(three, kind.__name__, "user")
    assert stats.remaining == 0 and stats.reset_time - time.time() <= 4.1, stats
    # The sliding window counts the previous one in proportion.
    time.sleep(4.1)
    assert limiter.hit(three, kind.__name__, "user"), f"{kind}: still limited"
    limiter.clear(three, kind.__name__, "user")
    assert limiter.get_window_stats(three, kind.__name__, "user").remaining == 3
    did(kind.__name__.removesuffix("RateLimiter"))


async def asynchronous():
    limiter = limits.aio.strategies.MovingWindowRateLimiter(
        limits.storage.storage_from_string(f"async+redis://{HOST}:{PORT}", implementation="redispy")
    )
    answers = [await limiter.hit(three, "aio", "user") for _ in range(4)]
    assert answers == [True, True, True, False], answers


asyncio.run(asynchronous())
did("asyncio")
