"""The functions that the workers of rq_queue.py call."""

import redis
from did import HOST, PORT


def add(x, y):
    return x + y


def flaky(name):
    tries = redis.Redis(HOST, PORT).incr(name)
    if tries < 3:
        raise ValueError("not yet")
    return tries


def broken():
    raise RuntimeError("as intended")
