"""RQ: a queue, a worker process with its scheduler, retries, dependencies, results."""

import datetime
import os
import signal
import subprocess
import sys
import time

import redis
import rq
import rq_jobs
from did import HOST, PORT, URL, did, wait_until

connection = redis.Redis(HOST, PORT)
queue = rq.Queue("work", connection=connection)
worker = subprocess.Popen(
    [sys.executable, "-m", "rq.cli", "worker", "work", "--with-scheduler", "--url", URL, "--quiet"],
    cwd=os.path.dirname(os.path.abspath(__file__)),
)


def ended(job):
    wait_until(lambda: job.get_status(refresh=True) in ("finished", "failed"), f"{job} ended", 60)
    return job.get_status(), job.return_value()


try:
    jobs = [queue.enqueue(rq_jobs.add, n, 1) for n in range(5)]
    for n, job in enumerate(jobs):
        assert ended(job) == ("finished", n + 1), ended(job)
    did("enqueue, work, result")

    flaky = queue.enqueue(rq_jobs.flaky, "tries", retry=rq.Retry(max=5))
    assert ended(flaky) == ("finished", 3), ended(flaky)
    did("retry")

    broken = queue.enqueue(rq_jobs.broken)
    assert ended(broken)[0] == "failed"
    assert "as intended" in broken.latest_result().exc_string
    wait_until(lambda: broken.id in queue.failed_job_registry.get_job_ids(), "in the registry of failures")
    did("error, registry of failures")

    first = queue.enqueue(rq_jobs.add, 1, 1)
    second = queue.enqueue(rq_jobs.add, 2, 2, depends_on=first)
    assert ended(second) == ("finished", 4)
    did("dependency")

    start = time.monotonic()
    late = queue.enqueue_in(datetime.timedelta(seconds=2), rq_jobs.add, 3, 3)
    assert late.id in queue.scheduled_job_registry.get_job_ids()
    assert ended(late) == ("finished", 6)
    assert time.monotonic() - start > 1, "too early"
    did("delay by the scheduler")

    assert len(rq.Worker.all(connection=connection)) == 1
    short = queue.enqueue(rq_jobs.add, 1, 1, result_ttl=1)
    ended(short)
    wait_until(lambda: not rq.job.Job.exists(short.id, connection=connection), "the result expired")
    did("registry of workers, expiry of results")
finally:
    worker.send_signal(signal.SIGTERM)
    try:
        worker.wait(30)
    except subprocess.TimeoutExpired:
        worker.kill()
wait_until(lambda: not rq.Worker.all(connection=connection), "the worker left the registry")
did("shutdown")
