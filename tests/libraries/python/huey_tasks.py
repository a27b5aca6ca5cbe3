"""huey: tasks, retries, delays, locks and results with each of its storages for Redis."""

import time

import huey
from did import HOST, PORT, did, raises, wait_until

tries = []


def result_of(task):
    """None while its result is the error of an earlier try."""
    task.reset()
    try:
        return task.get(preserve=True)
    except huey.exceptions.TaskException:
        return None


for kind in (huey.RedisHuey, huey.PriorityRedisHuey, huey.RedisExpireHuey):
    app = kind(f"libraries-{kind.__name__}", host=HOST, port=PORT)
    tries.clear()

    @app.task(name=f"{app.name}.add")
    def add(x, y):
        return x + y

    @app.task(name=f"{app.name}.flaky", retries=3)
    def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    @app.task(name=f"{app.name}.broken")
    def broken():
        raise RuntimeError("as intended")

    consumer = app.create_consumer(workers=2, periodic=False, initial_delay=0.01, scheduler_interval=1)
    consumer.start()
    try:
        results = [add(n, 1) for n in range(20)]
        assert [result.get(blocking=True, timeout=20) for result in results] == list(range(1, 21))
        retried = flaky()
        assert wait_until(lambda: result_of(retried), "the retried task has a result") == 3
        error = raises(huey.exceptions.TaskException, lambda: broken().get(blocking=True, timeout=20))
        assert "as intended" in str(error), error

        start = time.monotonic()
        late = add.schedule((5, 5), delay=1)
        assert late.get(blocking=True, timeout=20) == 10
        assert time.monotonic() - start > 0.9, "too early"

        never = add.schedule((6, 6), delay=1)
        never.revoke()
        time.sleep(2.5)
        assert never.get() is None, "a revoked task ran"

        with app.lock_task("lock"):
            raises(huey.exceptions.TaskLockedException, app.lock_task("lock").__enter__)
        with app.lock_task("lock"):
            pass
    finally:
        consumer.stop(graceful=True)
    did(f"{kind.__name__}: tasks, retry, error, delay, revoke, lock")
