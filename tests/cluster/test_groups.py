"""Histories of collections, scripts, transactions and waiting clients (crates/workload/src/group.rs):
one server under kill -9 and pauses, members of a cluster that die and tablets that move; and a
server whose replies or data are changed on their way, which the checker must find."""

import random
import signal
import threading
import time

import pytest

import harness
from histories import Listener, RequestHandler, Workload
from processes import Cluster
from runs import clients_of, histories_under, scaled

pytestmark = pytest.mark.duramen

# Groups alone: no plain keys.
GROUPS = {"registers": 0, "counters": 0, "groups": 5, "native_clients": 0}


def judged(clients):
    clients.recheck()
    verdict = clients.judge()
    print(verdict)
    assert (verdict.illegal, verdict.undecided) == (0, 0), verdict.text
    return verdict


def workload(place, port, **options):
    return Workload(place, [f"127.0.0.1:{port}"], **{**GROUPS, "resp_clients": 8, **options})


def test_collections_of_a_server_that_is_killed(durable, place):
    clients = workload(place, durable.port)
    dice = random.Random(7)
    unknown, number = 0, 0
    # More histories if no kill has met an in-flight request, as in test_histories.py.
    while number < scaled(12) or unknown == 0 and number < scaled(60, quick=30):
        clients.begin(f"kill{number}", 1.2)
        for _ in range(2):
            time.sleep(dice.uniform(0.1, 0.5))
            durable.kill()
            durable.start()
        unknown += clients.finish()["resp"]["unknown"]
        number += 1
    judged(clients)
    assert unknown > 0, "no kill met a request on its way"
    clients.end()


def test_collections_of_a_server_that_pauses(durable, place):
    clients = workload(place, durable.port, timeout_ms=250)
    dice = random.Random(8)
    for number in range(scaled(5)):
        clients.begin(f"pause{number}", 1.2)
        for _ in range(3):
            time.sleep(dice.uniform(0.05, 0.2))
            durable.process.send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0.05, 0.4))
            durable.process.send_signal(signal.SIGCONT)
        clients.finish()
    judged(clients)
    clients.end()


def test_collections_of_members_that_die_while_tablets_move(place):
    with Cluster(place, 4, replicas=2) as cluster:

        def kill(storm):
            member = cluster.victim(storm.dice)
            member.kill()
            storm.rest(0, 0.4)
            member.start()
            cluster.await_health()

        def move(storm):
            cluster.move_something(storm.dice)  # one that loses its race with a recovery is refused
            cluster.await_health()

        clients = clients_of(cluster, place, **GROUPS)
        histories_under(cluster, clients, "die", [kill, move], 12, masked=False)
        with cluster.explained():
            judged(clients)
        clients.end()


# A server whose data are changed.


def after_push(words, reply):
    return [(b"RPOP" if words[0] == b"RPUSH" else b"LPOP", words[1])]


def after_exec(words, reply):
    """Undoes the first command of a transaction."""
    return [(b"DEL", words[1])]


# The lies: the command after which a lie comes, the reply that it needs, and the commands that
# change the data behind the clients' backs.
LIES = {
    "push lost": ({b"RPUSH", b"LPUSH"}, b":", after_push),
    "push twice": ({b"RPUSH", b"LPUSH"}, b":", lambda words, reply: [words]),
    "element again": ({b"LPOP", b"RPOP"}, b"$", lambda words, reply: [(b"LPUSH", words[1], bulk_of(reply))]),
    "increment twice": ({b"HINCRBY"}, b":", lambda words, reply: [words]),
    "member again": ({b"SREM"}, b":1", lambda words, reply: [(b"SADD", *words[1:])]),
    "score lost": ({b"ZADD", b"ZINCRBY"}, b"", lambda words, reply: [(b"ZREM", words[1], words[3])]),
    "entry again": ({b"XREADGROUP"}, b"*1", lambda words, reply: [(b"XGROUP", b"SETID", words[7], words[2], b"0")]),
    "half a script": ({b"EVAL"}, b":1", lambda words, reply: [(b"RPOP", words[4])]),
    "half a transaction": ({b"EXEC"}, b"*2", after_exec),
}


def bulk_of(reply):
    return reply[reply.index(b"\r\n") + 2 : -2]


class Liar:
    """Between clients and a server: now and then it changes the data behind a command."""

    def __init__(self, port, lie):
        self.port = port
        self.lie = LIES.get(lie)
        self.guard = threading.Lock()
        self.dice = random.Random(9)
        self.told = 0

    def lies(self, words, reply):
        if not self.lie or words[0] not in self.lie[0] or not reply.startswith(self.lie[1]):
            return False
        with self.guard:
            if reply.startswith(b"$-1") or self.dice.random() > 0.1:
                return False
            self.told += 1
            return True


class Handler(RequestHandler):
    def handle(self):
        liar, queued = self.server.liar, None
        with harness.Wire(liar.port) as wire:
            while words := self.words():
                wire.send(harness.encode(*words))
                reply = wire.raw_reply()
                meant = words
                if words[0] == b"MULTI":
                    queued = []
                elif words[0] == b"EXEC":
                    meant, queued = [b"EXEC", queued[0][1]], None
                elif queued is not None:
                    queued.append(words)
                if queued is None and liar.lies(meant, reply):
                    wire.pipeline(liar.lie[2](meant, reply))
                self.wfile.write(reply)

# Lies of the quick tier: a write that gets lost, and one that breaks a transaction.
QUICK = ("push lost", "half a transaction")


@pytest.mark.parametrize("lie", ["none", *(lie if lie in QUICK else harness.only_full(lie) for lie in LIES)])
def test_a_server_that_lies_about_collections_is_found_out(place, lie):
    with harness.Duramen(place) as server, Listener(("127.0.0.1", 0), Handler) as listener:
        listener.liar = Liar(server.port, lie)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        clients = workload(place, listener.server_address[1], resp_clients=4, groups=2, rest_us=3000)
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
        assert listener.liar.told > 0
        assert verdict.illegal == 1 and "none of these can be next" in verdict.text, verdict.text
