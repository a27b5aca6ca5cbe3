"""Celery with this server as broker and for results; the worker is a process of its own."""

import os
import signal
import subprocess
import sys
import time

import celery
import celery_app
from celery_app import add, app, broken, flaky, total
from did import did, raises, wait_until

worker = subprocess.Popen(
    [sys.executable, "-m", "celery", "--app", "celery_app", "worker", "--concurrency=2", "--loglevel=ERROR"],
    cwd=os.path.dirname(os.path.abspath(__file__)),
)
try:
    wait_until(lambda: app.control.ping(timeout=1), "the worker answers")
    did("worker, ping by broadcast")

    assert add.delay(2, 3).get(timeout=30) == 5
    assert celery.group(add.s(n, n) for n in range(50))().get(timeout=30) == [2 * n for n in range(50)]
    did("tasks and results")

    start = time.monotonic()
    assert add.apply_async((1, 1), countdown=1).get(timeout=30) == 2
    assert time.monotonic() - start >= 0.9, "too early"
    did("delay")

    assert flaky.delay().get(timeout=30) == 3
    assert str(raises(RuntimeError, lambda: broken.delay().get(timeout=30))) == "as intended"
    did("retry, error")

    assert celery.chain(add.s(1, 2), add.s(3))().get(timeout=30) == 6
    assert celery.chord(add.s(n, n) for n in range(20))(total.s()).get(timeout=30) == 380
    did("chain, chord")

    late = add.apply_async((1, 1), countdown=30)
    late.revoke()
    wait_until(lambda: late.id in str(app.control.inspect(timeout=1).revoked()), "revoked")
    did("revoke, inspect")

    result = add.delay(1, 1)
    result.get(timeout=30)
    ttl = celery_app.app.backend.client.ttl(f"celery-task-meta-{result.id}")
    assert 0 < ttl <= 60, ttl
    result.forget()
    did("results expire")
finally:
    worker.send_signal(signal.SIGTERM)
    try:
        worker.wait(30)
    except subprocess.TimeoutExpired:
        worker.kill()
assert worker.returncode == 0, f"the worker ended with {worker.returncode}"
did("warm shutdown")
