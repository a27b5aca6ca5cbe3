"""Users of a cluster: changed on any member, in force on all, kept through deaths."""

import random
import subprocess
import threading

import pytest
import redis

import harness
from harness import wait_until
from processes import Cluster, connect

pytestmark = pytest.mark.duramen

# A change reaches the other members within this time, on two shared cores.
SOON_S = 40


def logs_in(member, user, password):
    try:
        with connect(member, user, password) as client:
            return client.ping()
    except (redis.exceptions.AuthenticationError, redis.exceptions.ConnectionError):
        return False


def revisions(members):
    found = set()
    for member in members:
        with connect(member) as client:
            found.add(int(client.info("cluster")["duramen_users_revision"]))
    return found


def await_users(members, user, password, may=True, is_open=True):
    """`is_open`: the default user needs no password, so the members tell their revisions. Failed
    logins would slow the next ones."""
    if is_open:
        wait_until(lambda: len(revisions(members)) == 1, "all have the same users", patience_s=SOON_S)
    for member in members:
        what = f"{member.name} {'lets in' if may else 'refuses'} {user}"
        wait_until(lambda member=member: logs_in(member, user, password) == may, what, patience_s=SOON_S)


@pytest.fixture
def cluster(place):
    with Cluster(place, 3, replicas=2, settings=harness.CALM) as cluster:
        yield cluster


def test_a_change_on_one_member_is_in_force_on_all(cluster):
    one, two, three = cluster.members
    assert revisions(cluster.members) == {0}, "each member has its own users"
    with connect(one) as admin:
        assert admin.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~app:*", "+@all", "-acl")
        await_users(cluster.members, "ann", "secret")
        with connect(three, "ann", "secret") as ann:
            with pytest.raises(redis.exceptions.NoPermissionError):
                ann.acl_list()
            with connect(two) as other:
                assert other.execute_command("ACL", "SETUSER", "ann", "+acl|list")
            wait_until(lambda: allowed(ann.acl_list), "the open connection has the new right", patience_s=SOON_S)
            # The reply comes after the connections here are closed; those of others follow.
            assert admin.acl_deluser("ann", "nobody") == 1
            wait_until(lambda: not allowed(ann.ping), "the connection of a removed user ends", patience_s=SOON_S)
        await_users(cluster.members, "ann", "secret", may=False)
        with pytest.raises(redis.exceptions.ResponseError, match="modifier"):
            admin.execute_command("ACL", "SETUSER", "ann", "+nonsense")
        with pytest.raises(redis.exceptions.ResponseError, match="Syntax|Error in ACL"):
            admin.execute_command("ACL", "SETUSER", "ann", "+get|x\nuser eve on nopass ~* +@all")
        with pytest.raises(redis.exceptions.ResponseError, match="transaction"):
            pipe = admin.pipeline(transaction=True)
            pipe.execute_command("ACL", "SETUSER", "bob", "on")
            pipe.execute()
        with pytest.raises(redis.exceptions.ResponseError, match="coordinator keeps the users"):
            admin.config_set("requirepass", "other")


def test_who_may_not_see_the_members_gets_no_part_of_the_keys(cluster):
    """`duramen keys`, `scan` and `dbsize` printed the keys of one member alone, with exit code 0."""
    one = cluster.members[0]
    rights = ("on", ">secret", "~*", "+@read", "+@connection")
    with connect(one) as admin, redis.RedisCluster("127.0.0.1", one.port) as client:
        for number in range(60):
            client.set(f"key{number}", "v")
        admin.execute_command("ACL", "SETUSER", "reader", *rights)
        await_users(cluster.members, "reader", "secret")
        for words in (("keys", "*"), ("scan",), ("dbsize",)):
            done = told(one, "reader", *words)
            assert (done.returncode, done.stdout) == (3, ""), (words, done)
            assert "+cluster|nodes" in done.stderr, (words, done)
        admin.execute_command("ACL", "SETUSER", "reader", "+cluster|nodes", "+cluster|info")
        await_users(cluster.members, "reader", "secret")
    done = told(one, "reader", "dbsize")
    assert (done.returncode, done.stdout.strip()) == (0, "60"), done


def told(member, user, *words):
    command = [harness.BINARY, *words, "--port", str(member.port), "--user", user]
    own = harness.environment({"DURAMEN_PASSWORD": "secret"})
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=90)


def allowed(request):
    try:
        request()
        return True
    except (redis.exceptions.NoPermissionError, redis.exceptions.ConnectionError):
        return False


def test_users_survive_deaths_and_a_restart_opens_nothing(cluster):
    one, two, three = cluster.members
    with connect(one) as admin:
        admin.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all")
        admin.execute_command("ACL", "SETUSER", "default", "off")
    await_users(cluster.members, "ann", "secret", is_open=False)
    two.kill()
    cluster.coordinators[0].kill()
    cluster.coordinators[0].start()
    two.start()

    early = wait_until(lambda: opened(two), "the member listens", patience_s=60)

    def refuses_strangers():
        """Never lets one in, from the first answer of the new life on."""
        try:
            with connect(two) as stranger:
                stranger.ping()
            pytest.fail("a stranger was let in")
        except redis.exceptions.AuthenticationError:
            return True
        except redis.exceptions.ConnectionError:
            return False

    wait_until(refuses_strangers, "the member serves again", patience_s=60)
    wait_until(lambda: logs_in(two, "ann", "secret"), "the member has the users", patience_s=60)
    # A connection from before keeps no rights, whatever the member's own configuration says.
    with early, pytest.raises((OSError, harness.Closed, harness.ErrorReply)):
        early.call("SET", "k", "v")
    with connect(two, "ann", "secret") as ann:
        wait_until(lambda: changed(ann, "bob"), "users can be changed again", patience_s=60)
    await_users(cluster.members, "bob", "other", is_open=False)


def opened(member):
    try:
        return harness.Wire(member.port)
    except OSError:
        return None


def changed(client, name):
    try:
        return client.execute_command("ACL", "SETUSER", name, "on", ">other", "+@all")
    except redis.exceptions.ResponseError:
        return False


def test_administrators_on_all_members_undo_nothing(cluster):
    dice = random.Random(5)
    names = [f"user{number}" for number in range(24)]
    dice.shuffle(names)
    failures = []

    def administer(member, own):
        try:
            with connect(member) as admin:
                for name in own:
                    admin.execute_command("ACL", "SETUSER", name, "on", ">secret", "+@all", "~*")
        except redis.exceptions.RedisError as error:
            failures.append(error)

    shares = [names[n :: len(cluster.members)] for n in range(len(cluster.members))]
    threads = [threading.Thread(target=administer, args=pair) for pair in zip(cluster.members, shares)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures
    wait_until(lambda: len(revisions(cluster.members)) == 1, "all have the same users", patience_s=SOON_S)
    for member in cluster.members:
        with connect(member) as client:
            assert set(client.acl_users()) == {"default", *names}


def test_load_replaces_the_users_of_all(place):
    file = place / "users"
    file.write_text("user default on nopass ~* &* +@all\nuser ann on >secret ~* +@all\n")
    with Cluster(place, 3, replicas=2, settings=harness.CALM, options=("--aclfile", file)) as cluster:
        one, two, _ = cluster.members
        with connect(one) as admin:
            admin.execute_command("ACL", "SETUSER", "bob", "on", ">other", "+@all")
        await_users(cluster.members, "bob", "other")
        with connect(two) as admin:
            assert admin.acl_load()
        await_users(cluster.members, "bob", "other", may=False)
        await_users(cluster.members, "ann", "secret")
        with connect(two) as admin:
            file.write_text("user ann on >secret nonsense\n")
            with pytest.raises(redis.exceptions.ResponseError, match="no change"):
                admin.acl_load()
        await_users(cluster.members, "ann", "secret")
