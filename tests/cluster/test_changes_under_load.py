"""Certificates, users, passwords and keys are changed under load over TLS, while members die: no
request fails for a change, and no acknowledged write is lost."""

import collections
import re
import shutil
import signal
import ssl
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

import harness
from harness import wait_until
from processes import Cluster, Member
from test_encryption import tool

pytestmark = pytest.mark.duramen

# A change is in force everywhere within this time, on two shared cores.
SOON_S = 40
WORKERS = 3
KEYS_EACH = 40
# Requests of a client before a new one takes its place, with new connections and a new login.
REQUESTS_EACH = 60
ROOT = "the administrator"
RIGHTS = "~load:* -@all +@read +@write +@connection +@transaction +cluster +command -@dangerous"
# Errors of certificates, users and keys: not even a death excuses them.
NEVER = re.compile("certificate|alert|WRONGPASS|NOAUTH|NOPERM|username|password|authenti|decrypt", re.IGNORECASE)
# Errors that go with a killed member.
OF_A_DEATH = (
    *(redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.ClusterError),
    *(redis.exceptions.RedisClusterException, redis.exceptions.TryAgainError, redis.exceptions.MovedError, OSError),
)


class EncryptedMember(Member):
    """A member with a port for TLS, and with a key of its own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.tls_port = harness.free_port()
        self.key = self.folder / "key"
        tool("key", "init", self.key)

    def start(self, *options):
        return super().start("--tls-port", self.tls_port, "--encryption-key-file", self.key, *options)

    def rotate_key(self):
        new = self.folder / "key.new"
        tool("key", "init", new)
        keys = ("--encryption-key-file", self.key, "--new-encryption-key-file", new)
        tool("key", "rotate", self.folder / "data", *keys)
        new.replace(self.key)


class GuardedCluster(Cluster):
    """A cluster with TLS everywhere. Its clients may have other certificates than its servers."""

    def __init__(self, place):
        self.certs = place / "certs"
        tool("cert", "init", self.certs)
        for name in ("alice", "probe"):
            tool("cert", "issue", name, "--dir", self.certs)
        files = self.files("server")
        options = ("--tls-cluster=yes", "--wal-size", "16mb", *files)
        super().__init__(place, 3, replicas=1, settings=(*files, *harness.CALM), options=options)
        self.members = [EncryptedMember(member.name, member.folder, self) for member in self.members]
        self.login = ()

    def files(self, name):
        cert, key = self.certs / f"{name}.crt", self.certs / f"{name}.key"
        return "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", self.certs / "ca.crt"

    def tell(self, *words, name="server", **options):
        return super().tell(*words, *self.files(name), *self.login, **options)

    def running(self):
        return [member for member in self.members if member.is_running()]

    def redis_options(self, name, folder=None):
        """Options of redis-py for the certificate `name`."""
        folder = folder or self.certs
        files = {"ssl_ca_certs": folder / "ca.crt", "ssl_certfile": folder / f"{name}.crt", "ssl_keyfile": folder / f"{name}.key"}
        return {"ssl": True, "socket_timeout": 20, "decode_responses": True, **{key: str(path) for key, path in files.items()}}

    def reload(self):
        """Has every running process read its certificates again, and waits until all have done so:
        the members take and show certificates of the newest authority, and the coordinator takes
        one. `probe` is issued anew first."""
        tool("cert", "rotate", "probe", "--dir", self.certs)
        for process in (*self.coordinators, *self.running()):
            process.signal(signal.SIGHUP)
        for member in self.running():
            wait_until(lambda member=member: self.is_reloaded(member), f"{member.name} has read its files", SOON_S)
        wait_until(lambda: self.tell("status", name="probe").returncode == 0, "the coordinator has too", SOON_S)

    def is_reloaded(self, member):
        """Whether a member shows the certificate of the file, and takes that of `probe`."""
        shown = ssl.get_server_certificate(("127.0.0.1", member.tls_port))
        if ssl.PEM_cert_to_DER_cert(shown) != ssl.PEM_cert_to_DER_cert((self.certs / "server.crt").read_text()):
            return False
        try:
            with self.connect(member, name="probe") as root:
                return root.ping()
        except (redis.exceptions.ConnectionError, OSError):
            return False

    def connect(self, member, user="root", password=ROOT, name="alice"):
        """A client of one member that repeats nothing: repeated failed logins are slow."""
        never = Retry(NoBackoff(), 0)
        return redis.Redis(
            port=member.tls_port, username=user, password=password, retry=never, **self.redis_options(name)
        )

    def set_user(self, *words):
        """Changes a user, and waits until all running members have the change."""
        with self.connect(self.running()[0]) as root:
            assert root.execute_command("ACL", "SETUSER", *words)
        self.await_users()

    def await_users(self):
        def revisions():
            found = set()
            for member in self.running():
                with self.connect(member) as root:
                    found.add(root.info("cluster")["duramen_users_revision"])
            return found

        wait_until(lambda: len(revisions()) == 1, "all members have the same users", SOON_S)

    def make_users(self):
        """An administrator, the load's user, and a default user who can only ask for the health."""
        with redis.Redis(port=self.members[0].port) as first:
            assert first.execute_command("ACL", "SETUSER", "root", "on", f">{ROOT}", "~*", "&*", "+@all")
        self.login = ("--user", "root", "--password", ROOT)
        self.await_users()
        self.set_user("load", "on", ">password0", *RIGHTS.split())
        self.set_user("default", "reset", "on", "nopass", "+info")


class Load:
    """Threads that write keys of their own and read each write back, with ever new clients."""

    def __init__(self, cluster, place):
        self.cluster = cluster
        self.place = place
        self.password = "password0"
        self.generation = 0
        self.publish()
        self.over = threading.Event()
        self.has_death = False
        self.done = 0
        self.forgiven = collections.Counter()
        self.failures = []
        self.acknowledged = {}
        # Values of failed writes since the acknowledged one: each may be there or not.
        self.possible = collections.defaultdict(set)
        self.adopted = [0] * WORKERS
        self.threads = [threading.Thread(target=self.work, args=(number,), daemon=True) for number in range(WORKERS)]

    def publish(self, password=None):
        """Gives the certificates of now, and a password, to the clients from the next one on."""
        folder = self.place / f"client{self.generation + 1}"
        folder.mkdir()
        for name in ("ca.crt", "alice.crt", "alice.key"):
            shutil.copy(self.cluster.certs / name, folder)
        self.folder, self.password = folder, password or self.password
        self.generation += 1

    def give(self, password=None):
        """The same, and waits until no worker has a client with the old ones."""
        self.publish(password)
        wait_until(lambda: min(self.adopted) >= self.generation, "the load has the new ones", SOON_S)

    def client(self):
        """One that repeats nothing, so that no error is hidden."""
        return RedisCluster(
            startup_nodes=[ClusterNode("127.0.0.1", member.tls_port) for member in self.cluster.members],
            username="load",
            password=self.password,
            retry=Retry(NoBackoff(), 0),
            **self.cluster.redis_options("alice", self.folder),
        )

    def work(self, number):
        count = 0
        while not self.over.is_set():
            generation, client = self.generation, None
            try:
                client = self.client()
                for _ in range(REQUESTS_EACH):
                    if self.over.is_set() or generation != self.generation:
                        break
                    count += 1
                    self.write(client, f"load:{number}:{count % KEYS_EACH}", f"{number}.{count}")
            except Exception as error:  # noqa: BLE001 - judged by the test
                self.note(error)
                time.sleep(0.02)
            finally:
                if client:
                    client.close()
            # The client of the earlier generation is closed by now.
            self.adopted[number] = generation

    def write(self, client, key, value):
        self.possible[key].add(value)
        assert client.set(key, value), key
        self.acknowledged[key] = value
        self.possible[key].clear()
        found = client.get(key)
        if found != value:
            self.failures.append(f"{key} is {found}, and {value} was acknowledged")
        self.done += 1

    def note(self, error):
        text = f"{type(error).__name__}: {error}; {error.__cause__ or error.__context__ or ''}"
        excused = self.has_death and isinstance(error, OF_A_DEATH) and not NEVER.search(text)
        if excused and not isinstance(error, redis.exceptions.AuthenticationError):
            self.forgiven[type(error).__name__] += 1
        else:
            self.failures.append(text)

    def check(self, what):
        """Fails if a request has failed, or if nothing was done since the last check."""
        assert not self.failures, (what, len(self.failures), self.failures[:5])
        before = self.done
        wait_until(lambda: self.done > before or self.failures, f"the load goes on after: {what}", SOON_S)
        assert not self.failures, (what, len(self.failures), self.failures[:5])

    def verify(self):
        """Reads all keys once more."""
        client = self.client()
        for key, value in self.acknowledged.items():
            found = client.get(key)
            assert found == value or found in self.possible[key], (key, found, value, self.possible[key])
        client.close()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(harness.PATIENCE_S)


# The changes. Each is made as docs/security.md says, and has its way of overlapping.


def change_certificates(cluster, load):
    """New certificates of servers and clients, by the same authority."""
    for name in ("server", "alice"):
        tool("cert", "rotate", name, "--dir", cluster.certs)
    cluster.reload()
    load.give()


def change_authority(cluster, load):
    tool("cert", "rotate", "--authority", "--dir", cluster.certs)
    cluster.reload()
    load.give()
    change_certificates(cluster, load)
    tool("cert", "rotate", "--end-overlap", "--dir", cluster.certs)
    cluster.reload()
    load.give()


def change_password(cluster, load):
    old, new = load.password, f"password{load.generation}"
    cluster.set_user("load", f">{new}")
    load.give(new)
    cluster.set_user("load", f"<{old}")


def change_others(cluster, _):
    """Another user is added, narrowed and removed; each change is in force on another member."""
    last = cluster.running()[-1]
    cluster.set_user("guest", "on", ">guest", "~load:*", "+@read", "+cluster")

    def reads():
        with cluster.connect(last, "guest", "guest") as guest:
            try:
                guest.get("load:0:0")
            except redis.exceptions.NoPermissionError:
                return False
            except redis.exceptions.MovedError:
                pass
            return True

    assert reads()
    cluster.set_user("guest", "-get")
    assert not reads()
    with cluster.connect(cluster.running()[0]) as root:
        assert root.acl_deluser("guest") == 1
    cluster.await_users()


def change_keys(cluster, _):
    for member in cluster.members:
        member.rotate_key()


CHANGES = (change_certificates, change_authority, change_password, change_others, change_keys)


@pytest.fixture
def cluster(place):
    with GuardedCluster(place) as cluster:
        cluster.make_users()
        yield cluster


@pytest.mark.full
def test_no_request_fails_for_a_change(cluster, place):
    with cluster.explained(), Load(cluster, place) as load:
        load.check("the start")
        for change in CHANGES:
            change(cluster, load)
            load.check(change.__name__)
        for number, change in enumerate(CHANGES):
            victim = cluster.members[number % len(cluster.members)]
            load.has_death = True
            victim.kill()
            change(cluster, load)
            victim.start()
            cluster.await_health()
            load.check(f"a death and {change.__name__}")
            load.has_death = False
    load.verify()
    assert not load.failures, load.failures[:5]
    print(f"{load.done} writes, {load.generation} sets of certificates and passwords, forgiven: {dict(load.forgiven)}")


def test_the_load_notices_a_password_without_overlap(cluster, place):
    with Load(cluster, place) as load:
        load.check("the start")
        cluster.set_user("load", "resetpass", ">other")
        wait_until(lambda: load.failures, "the load notices", SOON_S)
    assert any("password" in failure for failure in load.failures), load.failures[:5]
