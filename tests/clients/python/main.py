"""The scenarios of tests/clients/README.md by redis-py."""

import os
import ssl
import sys
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

HOST, PORT, RESP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


USER = os.environ.get("CLIENT_USER")
REFUSED = os.environ.get("CLIENT_REFUSED")


def client():
    options = {}
    if USER:
        options.update(username=USER, password=os.environ["CLIENT_PASSWORD"])
    if authority := os.environ.get("CLIENT_CA"):
        options.update(ssl=True, ssl_ca_certs=authority, ssl_min_version=ssl.TLSVersion.TLSv1_3)
        options.update(ssl_certfile=os.environ.get("CLIENT_CERT"), ssl_keyfile=os.environ.get("CLIENT_KEY"))
    if REFUSED:
        options.update(retry=Retry(NoBackoff(), 0))
    return redis.Redis(host=HOST, port=PORT, protocol=RESP, socket_timeout=20, **options)


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def equal(found, wanted):
    if found != wanted:
        raise AssertionError(f"found {found!r:.200}, wanted {wanted!r:.200}")


def connect(r):
    equal(r.ping(), True)
    equal(int(r.client_info()["resp"]), RESP)


def strings(r):
    equal(r.set("s", "1", ex=100), True)
    equal(r.set("s", "2", nx=True), None)
    equal(r.set("s", "3", xx=True, get=True), b"1")
    equal(r.get("s"), b"3")
    equal(r.append("s", "4"), 2)
    equal(r.incrby("s", 8), 42)
    equal(r.mset({"s1": "a", "s2": "b"}), True)
    equal(r.mget("s1", "none", "s2"), [b"a", None, b"b"])
    equal(r.delete("s", "s1", "s2", "none"), 3)
    equal(r.get("s"), None)


def pipeline(r):
    pipe = r.pipeline(transaction=False)
    for i in range(5000):
        pipe.set(f"p{i}", i)
        pipe.get(f"p{i}")
    wanted = [reply for i in range(5000) for reply in (True, str(i).encode())]
    equal(pipe.execute(), wanted)


def transaction(r):
    r.delete("t")
    with r.pipeline(transaction=True) as pipe:
        pipe.set("t", 1).incr("t").get("t")
        equal(pipe.execute(), [True, 2, b"2"])
    with r.pipeline(transaction=True) as pipe:
        pipe.set("t", 9)
        pipe.reset()
    equal(r.get("t"), b"2")


def watch(r):
    other = client()
    r.set("w", 1)
    with r.pipeline() as pipe:
        pipe.watch("w")
        other.set("w", 2)
        pipe.multi()
        pipe.set("w", 3)
        try:
            pipe.execute()
        except redis.WatchError:
            pass
        else:
            raise AssertionError("EXEC went through although the watched key was changed")
    equal(r.get("w"), b"2")
    with r.pipeline() as pipe:
        pipe.watch("w")
        pipe.multi()
        pipe.set("w", 4)
        equal(pipe.execute(), [True])
    equal(r.get("w"), b"4")
    other.close()


def big(r):
    value = bytes(i * 31 % 251 for i in range(1024)) * 1024
    equal(r.set("big", value), True)
    equal(r.strlen("big"), 1 << 20)
    equal(r.get("big"), value)


def binary(r):
    every = bytes(range(256))
    for key, value in ((every, every[::-1]), (b"\r\n", b"\r\n$5\r\n"), (b"\x00", b"")):
        equal(r.set(key, value), True)
        equal(r.get(key), value)


def expiry(r):
    r.set("e", 1, px=60)
    deadline = time.monotonic() + 10
    while r.get("e") is not None:
        check(time.monotonic() < deadline, "a key of 60 ms still lives after 10 s")
    r.set("e", 1, px=60_000)
    check(0 < r.pttl("e") <= 60_000, "PTTL")
    equal(r.persist("e"), True)
    equal(r.pttl("e"), -1)
    equal(r.pttl("none"), -2)


def scan(r):
    wanted = {f"scan:{i}".encode() for i in range(3000)}
    r.mset({key: 1 for key in wanted})
    equal(set(r.scan_iter(match="scan:*", count=100)), wanted)


def errors(r):
    r.set("text", "abc")
    for command in (("INCR", "text"), ("NO-SUCH-COMMAND",)):
        try:
            r.execute_command(*command)
        except redis.ResponseError:
            pass
        else:
            raise AssertionError(f"{command} gave no error")
    equal(r.get("text"), b"abc")


def denied(r):
    for command in (("CONFIG", "GET", "port"), ("GET", "denied")):
        try:
            r.execute_command(*command)
        except redis.exceptions.NoPermissionError:
            pass
        else:
            raise AssertionError(f"{command} was allowed")
    equal(r.ping(), True)


def concurrent(r):
    r.delete("count")

    def work():
        own = client()
        for _ in range(250):
            own.incr("count")
        own.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(r.get("count"), b"2000")


def reconnect(r):
    equal(r.set("before", 1), True)
    print("kill me", flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + 20
    while True:
        try:
            equal(r.set("after", 1), True)
            break
        except (redis.ConnectionError, redis.TimeoutError):
            check(time.monotonic() < deadline, "no connection 20 s after the restart")
    equal(r.get("after"), b"1")


r = client()
scenarios = [connect, strings, pipeline, transaction, watch, big, binary, expiry, scan, errors, concurrent, reconnect]
if REFUSED:
    scenarios = [connect]
elif USER:
    scenarios.append(denied)
for scenario in scenarios:
    try:
        scenario(r)
        print("pass", scenario.__name__, flush=True)
    except Exception as error:
        print("fail", scenario.__name__, type(error).__name__, str(error).replace("\n", " "), flush=True)
