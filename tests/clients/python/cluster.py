"""The workload of a cluster, as described in clients/README.md, by redis-py."""

import collections
import faulthandler
import json
import signal
import sys
import threading
import time
import traceback

import redis
from redis.cluster import ClusterNode, RedisCluster

WORKERS = 4
KEYS = 50
SAY_EVERY_S = 0.1
# Pause after an error.
REST_S = 0.01

said = threading.Lock()


def say(*words):
    with said:
        print(*words, flush=True)


class Worker(threading.Thread):
    """Writes its own keys repeatedly, and reads each back."""

    def __init__(self, client, number, stop):
        super().__init__()
        self.client = client
        self.number = number
        self.stop = stop
        self.acknowledged = 0
        self.passes = 0
        self.errors = collections.Counter()
        self.wrong = []
        self.gap_s = 0.0
        # For each key: the last acknowledged value, and values with an unknown outcome.
        self.known = {f"worker{number}:{key}": (None, set()) for key in range(KEYS)}

    def run(self):
        sequence = 0
        said_at = 0.0
        succeeded_at = time.monotonic()
        while not self.stop.is_set():
            for key in self.known:
                sequence += 1
                if self.write(key, str(sequence)):
                    now = time.monotonic()
                    self.gap_s = max(self.gap_s, now - succeeded_at)
                    succeeded_at = now
            self.passes += 1
            if time.monotonic() - said_at > SAY_EVERY_S:
                said_at = time.monotonic()
                say("pass", self.number, self.passes, sum(self.errors.values()))

    def write(self, key, value):
        last, unknown = self.known[key]
        try:
            self.client.set(key, value)
        except Exception as error:  # noqa: BLE001 - the test judges any error
            self.count(error)
            unknown.add(value)
            return False
        self.known[key] = (value, unknown)
        self.acknowledged += 1
        return self.read(key)

    def read(self, key):
        last, unknown = self.known[key]
        try:
            found = self.client.get(key)
        except Exception as error:  # noqa: BLE001 - the test judges any error
            self.count(error)
            return False
        if found != last and found not in unknown:
            self.wrong.append(f"{key}: found {found}, acknowledged {last}, unknown {sorted(unknown)}")
        return True

    def count(self, error):
        text = f"{type(error).__name__} {error}".split("\n")[0][:80]
        if text not in self.errors:
            print(f"{time.time():.3f} worker {self.number}:", text, file=sys.stderr)
            if not isinstance(error, redis.RedisError):
                traceback.print_exception(error)
        self.errors[text] += 1
        time.sleep(REST_S)

    def check(self):
        for key, (last, _) in self.known.items():
            if last is not None:
                while not self.read(key):
                    time.sleep(0.1)


def main():
    # Prints the stacks of all threads on SIGQUIT.
    faulthandler.register(signal.SIGQUIT)
    nodes = [ClusterNode(*node.rsplit(":", 1)) for node in sys.argv[1].split(",")]
    client = RedisCluster(startup_nodes=nodes, protocol=int(sys.argv[2]), decode_responses=True)
    stop = threading.Event()
    workers = [Worker(client, number, stop) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    sys.stdin.readline()
    stop.set()
    for worker in workers:
        worker.join()
    for worker in workers:
        worker.check()
    errors = sum((worker.errors for worker in workers), collections.Counter())
    result = {
        "acknowledged": sum(worker.acknowledged for worker in workers),
        "errors": errors,
        "wrong": [text for worker in workers for text in worker.wrong],
        "gap_ms": round(1000 * max(worker.gap_s for worker in workers)),
    }
    say("result", json.dumps(result))


if __name__ == "__main__":
    main()
