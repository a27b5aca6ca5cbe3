"""django-redis: Django's cache with this server, its extensions, and sessions."""

import threading
import time

import django
from did import URL, did
from django.conf import settings

settings.configure(
    CACHES={
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"{URL}/1",
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
        }
    },
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    INSTALLED_APPS=["django.contrib.sessions"],
)
django.setup()

from django.contrib.sessions.backends.cache import SessionStore  # noqa: E402
from django.core.cache import cache  # noqa: E402

cache.set("a", {"some": ["object", 1]}, timeout=30)
assert cache.get("a") == {"some": ["object", 1]}
assert not cache.add("a", 1) and cache.add("b", 1)
cache.set_many({"c": 1, "d": 2})
assert cache.get_many(["c", "d", "e"]) == {"c": 1, "d": 2}
assert cache.incr("c", 5) == 6 and cache.decr("c", 2) == 4
assert cache.get_or_set("f", lambda: 7) == 7
did("get, set, add, many, incr")

assert 0 < cache.ttl("a") <= 30 and cache.ttl("absent") == 0
cache.persist("a")
assert cache.ttl("a") is None
cache.expire("a", 10)
cache.touch("a", 20)
assert 10 < cache.ttl("a") <= 20
cache.set("short", 1, timeout=0.3)
time.sleep(0.5)
assert cache.get("short") is None
did("ttl, persist, touch, expiry")

cache.set("g", 1, version=1)
cache.incr_version("g")
assert cache.get("g", version=2) == 1 and cache.get("g", version=1) is None
for n in range(200):
    cache.set(f"item_{n}", n)
assert len(list(cache.iter_keys("item_*"))) == 200
assert cache.delete_pattern("item_*") == 200 and cache.keys("item_*") == []
did("versions, patterns")

order = []


def contend(name):
    with cache.lock("lock", timeout=10):
        order.append(name)
        time.sleep(0.05)
        order.append(name)


threads = [threading.Thread(target=contend, args=(n,)) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert order[0::2] == order[1::2], f"two inside: {order}"
did("lock")

session = SessionStore()
session["user"] = 42
session.set_expiry(1)
session.save()
assert SessionStore(session.session_key)["user"] == 42
time.sleep(1.3)
assert SessionStore(session.session_key).get("user") is None, "the session did not expire"
other = SessionStore()
other.create()
old = other.session_key
other.cycle_key()
assert not SessionStore().exists(old) and SessionStore().exists(other.session_key)
other.flush()
cache.clear()
assert cache.get("a") is None
did("sessions: create, read, expire, cycle; clear")
