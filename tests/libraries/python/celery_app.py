"""The tasks of celery_tasks.py, for its worker."""

import celery
import redis
from did import HOST, PORT, URL

app = celery.Celery("libraries", broker=f"{URL}/0", backend=f"{URL}/1")
app.conf.update(result_expires=60, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
counts = redis.Redis(HOST, PORT, db=2)


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self):
    tries = counts.incr(self.request.id)
    if tries < 3:
        raise self.retry(exc=ValueError("not yet"), countdown=0.2)
    return tries


@app.task
def broken():
    raise RuntimeError("as intended")
