"""Functions and scripts in a cluster: libraries are changed on any member, in force on all, and kept
through deaths; scripts run where their keys are."""

import pytest
import redis

import harness
from harness import wait_until
from processes import Cluster, connect

pytestmark = pytest.mark.duramen

# A change reaches the other members within this time, on two shared cores.
SOON_S = 40

LIBRARY = """#!lua name={name}
redis.register_function('{name}_add', function(keys, args) return redis.call('incrby', keys[1], args[1]) end)
redis.register_function{{function_name='{name}_version', callback=function() return {version} end, flags={{'no-writes'}}}}
"""


def version(member, name):
    """None: the member has just been started, and does not listen yet."""
    try:
        with connect(member) as client:
            return client.fcall_ro(f"{name}_version", 0)
    except redis.ResponseError as error:
        return str(error)
    except redis.ConnectionError:
        return None


def await_version(members, name, expected):
    for member in members:
        what = f"{member.name} has {name} {expected}"
        wait_until(lambda member=member: version(member, name) == expected, what, patience_s=SOON_S)


@pytest.fixture
def cluster(place):
    with Cluster(place, 3, replicas=2, settings=harness.CALM) as cluster:
        yield cluster


def test_libraries_are_on_all_members_and_survive_deaths(cluster):
    one, two, three = cluster.members
    with connect(one) as client:
        assert client.function_load(LIBRARY.format(name="lib", version=1)) == "lib"
    await_version(cluster.members, "lib", 1)
    with connect(two) as client:
        with pytest.raises(redis.ResponseError, match="already exists"):
            client.function_load(LIBRARY.format(name="lib", version=2))
        client.function_load(LIBRARY.format(name="lib", version=2), replace=True)
        client.function_load(LIBRARY.format(name="other", version=7))
    await_version(cluster.members, "lib", 2)
    await_version(cluster.members, "other", 7)
    two.kill()
    cluster.coordinators[0].kill()
    cluster.coordinators[0].start()
    with connect(three) as client:
        client.function_delete("other")
    two.start()
    await_version(cluster.members, "lib", 2)
    await_version(cluster.members, "other", "Function not found")
    with connect(three) as client:
        payload = client.function_dump()
        client.function_flush()
        await_version(cluster.members, "lib", "Function not found")
        client.function_restore(payload)
    await_version(cluster.members, "lib", 2)


def test_scripts_and_functions_run_where_their_keys_are(cluster):
    nodes = [redis.cluster.ClusterNode("127.0.0.1", member.port) for member in cluster.members]
    with connect(cluster.members[0]) as client:
        client.function_load(LIBRARY.format(name="lib", version=1))
    await_version(cluster.members, "lib", 1)
    client = redis.cluster.RedisCluster(startup_nodes=nodes, decode_responses=True)
    script = "redis.call('rpush', KEYS[1] .. ':log', ARGV[1]) return redis.call('incr', KEYS[1])"
    for n in range(60):
        key = "{key%d}" % n
        assert client.eval(script, 1, key, n) == 1
        assert client.fcall("lib_add", 1, key, 4) == 5
        assert client.lrange(key + ":log", 0, -1) == [str(n)]
    with pytest.raises(redis.ResponseError, match="do not hash to the same slot"):
        client.eval("return redis.call('mset', KEYS[1], 1, 'elsewhere', 2)", 1, "here")
    assert client.get("here") is None and client.get("elsewhere") is None
    with pytest.raises(redis.ResponseError, match="non local key|same slot"):
        client.eval("return redis.call('get', 'elsewhere')", 1, "here")
    client.close()
