"""One server under kill -9 and pauses, checked by Porcupine; and servers with wrong replies, which
the checker must find.

The second half validates the first: a harness that calls a wrong server linearizable proves
nothing.
"""

import random
import signal
import threading
import time

import pytest

import harness
from histories import Listener, RequestHandler, Workload
from runs import scaled

pytestmark = pytest.mark.duramen


def workload(place, port, **options):
    return Workload(place, [f"127.0.0.1:{port}"], **options)


def test_histories_of_a_server_that_is_killed(durable, place):
    clients = workload(place, durable.port, resp_clients=10)
    dice = random.Random(4)
    unknown, number = 0, 0
    # More histories if no kill has met an in-flight request: on a slow machine clients send few
    # requests between two kills.
    while number < scaled(12) or unknown == 0 and number < scaled(60, quick=30):
        clients.begin(f"kill{number}", 1.2)
        for _ in range(2):
            time.sleep(dice.uniform(0.1, 0.5))
            durable.kill()
            durable.start()
        unknown += clients.finish()["resp"]["unknown"]
        number += 1
    clients.recheck()
    verdict = clients.judge()
    print(verdict)
    assert (verdict.illegal, verdict.undecided) == (0, 0), verdict.text
    assert unknown > 0, "no kill met a request on its way"
    clients.end()


def test_histories_of_a_server_that_pauses(durable, place):
    clients = workload(place, durable.port, resp_clients=10, timeout_ms=150)
    dice = random.Random(5)
    for number in range(scaled(6)):
        clients.begin(f"pause{number}", 1.2)
        for _ in range(3):
            time.sleep(dice.uniform(0.05, 0.2))
            durable.process.send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0.05, 0.3))
            durable.process.send_signal(signal.SIGCONT)
        clients.finish()
    clients.recheck()
    verdict = clients.judge()
    print(verdict)
    assert (verdict.illegal, verdict.undecided) == (0, 0), verdict.text
    clients.end()


# Servers with wrong replies.


class Fake:
    """A server of few commands, in Python, that gives wrong replies on demand."""

    def __init__(self, lie):
        self.lie = lie
        self.data = {}
        self.older = {}
        self.guard = threading.Lock()
        self.dice = random.Random(6)
        self.told = 0

    def lies(self, kind):
        if kind != self.lie or self.dice.random() > 0.01:
            return False
        self.told += 1
        return True

    def run(self, words):
        name, key = words[0].upper(), words[1]
        with self.guard:
            if name == b"GET":
                # Shows an older value, like a server that lost its lease and has not detected it.
                known = self.older if self.lies("stale read") and key in self.older else self.data
                return bulk(known.get(key))
            if name == b"INCRBY":
                times = 2 if self.lies("increment twice") else 1
                number = int(self.data.get(key, b"0")) + times * int(words[2])
                self.put(key, b"%d" % number)
                return b":%d\r\n" % number
            if name == b"DEL":
                there = key in self.data
                if there and not self.lies("removal undone"):
                    self.older[key] = self.data.pop(key)
                return b":%d\r\n" % there
            assert name == b"SET", words
            before = self.data.get(key)
            options = [word.upper() for word in words[3:]]
            if (b"NX" in options and before is not None) or (b"XX" in options and before is None):
                return bulk(None)
            if not self.lies("lost write"):
                self.put(key, words[2])
            return bulk(before) if b"GET" in options else b"+OK\r\n"

    def put(self, key, value):
        if key in self.data:
            self.older[key] = self.data[key]
        self.data[key] = value


def bulk(value):
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)


class Handler(RequestHandler):
    def handle(self):
        transaction = None
        while words := self.words():
            name = words[0].upper()
            if name == b"MULTI":
                transaction, reply = [], b"+OK\r\n"
            elif name == b"EXEC":
                parts = [self.server.fake.run(queued) for queued in transaction]
                transaction, reply = None, b"*%d\r\n%s" % (len(parts), b"".join(parts))
            elif transaction is not None:
                transaction.append(words)
                reply = b"+QUEUED\r\n"
            else:
                reply = self.server.fake.run(words)
            self.wfile.write(reply)

@pytest.mark.parametrize("lie", ["none", "stale read", *map(harness.only_full, ["lost write", "increment twice", "removal undone"])])
def test_a_lying_server_is_found_out(place, lie):
    with Listener(("127.0.0.1", 0), Handler) as listener:
        listener.fake = Fake(lie)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        clients = workload(place, listener.server_address[1], resp_clients=4, rest_us=3000)
        # A wrong reply may stay unseen, if the key is written again before a read. Among more of
        # them, one is seen.
        for number in range(1 if lie == "none" else 30):
            clients.begin(f"lie{number}", 1)
            clients.finish()
            verdict = clients.judge()
            if verdict.illegal:
                break
        clients.end()
        listener.shutdown()
    if lie == "none":
        assert (verdict.illegal, verdict.undecided) == (0, 0), verdict.text
    else:
        assert listener.fake.told > 0
        assert verdict.illegal == 1 and "none of these can be next" in verdict.text, verdict.text
        assert list(clients.histories.glob("lie*.html"))
