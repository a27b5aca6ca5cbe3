"""Values of all data types by redis-py and redis-cli: through kills and restarts, on flash, through
migration and recovery in a cluster; and interfaces that know strings alone."""

import subprocess
import time

import pytest
import redis
from redis.cluster import RedisCluster

import harness
import provide
from test_cluster_clients import Up
from test_member import Cluster

pytestmark = pytest.mark.duramen

KEYS = 20
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


def write(client, number):
    """Writes a value of each type: some elements, and a change of them."""
    client.hset(f"hash:{number}", mapping={"number": number, "empty": "", "long": "x" * (10 * number)})
    client.hincrby(f"hash:{number}", "number", 1)
    client.rpush(f"list:{number}", *range(number + 3))
    client.lpop(f"list:{number}")
    client.lset(f"list:{number}", -1, "last")
    client.sadd(f"set:{number}", "a", "b", number)
    client.srem(f"set:{number}", "a")
    client.zadd(f"zset:{number}", {"one": number + 0.5, "two": -number, "gone": 7})
    client.zrem(f"zset:{number}", "gone")
    client.setbit(f"bits:{number}", 1000 + number, 1)
    client.bitfield(f"bits:{number}").set("u8", 0, number).execute()
    client.pfadd(f"hll:{number}", *range(number))
    client.geoadd(f"geo:{number}", (13.361389, 38.115556, "Palermo"))
    client.set(f"string:{number}", number)
    stream = f"stream:{number}"
    client.xgroup_create(stream, "group", mkstream=True)
    for entry in range(1, number + 3):
        client.xadd(stream, {"number": entry, "text": "x" * number}, id=f"{entry}-1")
    client.xdel(stream, "2-1")
    client.xreadgroup("group", "reader", {stream: ">"}, count=1)
    client.expire(f"hash:{number}", 100_000)


def check(client, number):
    """All that `write` wrote is there."""
    hash_ = client.hgetall(f"hash:{number}")
    assert hash_ == {b"number": b"%d" % (number + 1), b"empty": b"", b"long": b"x" * (10 * number)}
    assert 90_000 < client.ttl(f"hash:{number}") <= 100_000
    items = [b"%d" % item for item in range(1, number + 2)] + [b"last"]
    assert client.lrange(f"list:{number}", 0, -1) == items
    assert set(client.smembers(f"set:{number}")) == {b"b", b"%d" % number}
    scored = [(name, score) for name, score in client.zrange(f"zset:{number}", 0, -1, withscores=True)]
    assert scored == [(b"two", float(-number)), (b"one", number + 0.5)]
    assert client.getbit(f"bits:{number}", 1000 + number) == 1
    assert client.bitfield(f"bits:{number}").get("u8", 0).execute() == [number]
    assert client.pfcount(f"hll:{number}") == number
    assert client.geopos(f"geo:{number}", "Palermo")[0] == pytest.approx((13.361389, 38.115556), abs=1e-4)
    assert client.get(f"string:{number}") == b"%d" % number
    stream = f"stream:{number}"
    entries = [(b"%d-1" % entry, {b"number": b"%d" % entry, b"text": b"x" * number}) for entry in range(1, number + 3)]
    del entries[1]
    assert client.xrange(stream) == entries
    pending = client.xpending_range(stream, "group", "-", "+", 10)
    assert [(one["message_id"], one["consumer"], one["times_delivered"]) for one in pending] == [(b"1-1", b"reader", 1)]
    kinds = {"hash": "hash", "list": "list", "set": "set", "geo": "zset", "bits": "string", "stream": "stream"}
    for name, kind in kinds.items():
        kind = kind.encode()
        assert client.type(f"{name}:{number}") == kind
    with pytest.raises(redis.ResponseError, match=WRONG_TYPE):
        client.get(f"list:{number}")
    with pytest.raises(redis.ResponseError, match=WRONG_TYPE):
        client.lpush(f"set:{number}", "x")


@pytest.mark.parametrize("protocol", [harness.only_full(2), 3])
def test_every_type_is_back_after_kills(start, tmp_path, protocol):
    server = start("--wal-size", "16mb", level=None, dir=tmp_path / "data", memory="64mb", threads=2)
    for round_ in range(3):
        with redis.Redis(port=server.port, protocol=protocol) as client:
            for number in range(round_ * KEYS, (round_ + 1) * KEYS):
                write(client, number)
            with client.pipeline() as pipe:
                pipe.multi()
                pipe.lpush("together", round_)
                pipe.sadd("together:set", round_)
                assert pipe.execute() == [round_ + 1, 1]
        server.kill()
        server.start()
        with redis.Redis(port=server.port, protocol=protocol) as client:
            for number in range((round_ + 1) * KEYS):
                check(client, number)
            assert client.llen("together") == client.scard("together:set") == round_ + 1
    with redis.Redis(port=server.port, protocol=protocol) as client:
        for number in range(3 * KEYS):
            assert client.delete(f"hash:{number}", f"list:{number}", f"set:{number}", f"zset:{number}") == 4
    server.kill()
    server.start()
    with redis.Redis(port=server.port, protocol=protocol) as client:
        assert not any(client.exists(f"list:{number}") for number in range(3 * KEYS))
        assert client.getbit("bits:1", 1001) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_groups_go_on_after_kills(start, tmp_path, protocol):
    """Each entry is worked on until it is acknowledged, and none is lost or given to two."""
    server = start("--wal-size", "16mb", level=None, dir=tmp_path / "data", memory="64mb", threads=2)
    names, acknowledged, given = ["a", "b", "c"], set(), 0
    with redis.Redis(port=server.port) as client:
        client.xgroup_create("jobs", "workers", id="0", mkstream=True)
    for round_ in range(3):
        with redis.Redis(port=server.port, protocol=protocol) as client:
            added = [client.xadd("jobs", {"job": round_ * 100 + n}) for n in range(100)]
            assert added == sorted(added, key=lambda id_: tuple(map(int, id_.split(b"-"))))
            for name in names:
                found = client.xreadgroup("workers", name, {"jobs": ">"}, count=20)
                entries = found[0][1] if protocol == 2 else found[b"jobs"][0]
                assert len(entries) == 20
                given += len(entries)
                done = [id_ for id_, _ in entries[:15]]
                assert client.xack("jobs", "workers", *done) == 15
                acknowledged.update(done)
        server.kill()
        server.start()
        with redis.Redis(port=server.port, protocol=protocol) as client:
            assert client.xlen("jobs") == 100 * (round_ + 1)
            group = client.xinfo_groups("jobs")[0]
            assert (group["pending"], group["consumers"]) == (15 * (round_ + 1), 3)
            assert (group["entries-read"], group["lag"]) == (given, 100 * (round_ + 1) - given)
            summary = client.xpending("jobs", "workers")
            assert summary["pending"] == 15 * (round_ + 1)
            assert [one["pending"] for one in summary["consumers"]] == [5 * (round_ + 1)] * 3
    with redis.Redis(port=server.port, protocol=protocol) as client:
        cursor, claimed = b"0-0", []
        while True:
            cursor, entries, deleted = client.xautoclaim("jobs", "workers", "heir", 0, start_id=cursor, count=10)
            claimed += [id_ for id_, _ in entries]
            assert deleted == []
            if cursor == b"0-0":
                break
        assert len(claimed) == len(set(claimed)) == 45 and not acknowledged & set(claimed)
        history = client.xreadgroup("workers", "heir", {"jobs": "0"}, count=1000)
        entries = history[0][1] if protocol == 2 else history[b"jobs"][0]
        assert [id_ for id_, _ in entries] == claimed
        assert client.xack("jobs", "workers", *claimed) == 45
        assert client.xpending("jobs", "workers")["pending"] == 0


def test_the_stream_commands_of_redis_py(server):
    with redis.Redis(port=server.port, decode_responses=True) as client:
        assert client.xadd("s", {"f": "v"}, nomkstream=True) is None
        ids = [client.xadd("s", {"n": n}, id=f"{n}-*", maxlen=50, approximate=False) for n in range(1, 61)]
        assert ids[0] == "1-0" and client.xlen("s") == 50
        assert client.xrange("s", min="(58-0", max="+") == [("59-0", {"n": "59"}), ("60-0", {"n": "60"})]
        assert client.xrevrange("s", count=1) == [("60-0", {"n": "60"})]
        assert client.xread({"s": "59", "none": "0"}) == [["s", [("60-0", {"n": "60"})]]]
        assert client.xread({"s": "$"}, block=1) == []
        assert client.xtrim("s", minid="21", approximate=False) == 10
        assert client.xdel("s", "30-0", "1-0") == 1
        client.xgroup_create("s", "g", id="20")
        with pytest.raises(redis.ResponseError, match="BUSYGROUP Consumer Group name already exists"):
            client.xgroup_create("s", "g", id="$")
        assert client.xgroup_createconsumer("s", "g", "idle") == 1
        assert [id_ for id_, _ in client.xreadgroup("g", "c", {"s": ">"}, count=2)[0][1]] == ["21-0", "22-0"]
        assert client.xclaim("s", "g", "d", 0, ["21-0"], retrycount=7) == [("21-0", {"n": "21"})]
        assert client.xclaim("s", "g", "d", 0, ["22-0"], justid=True) == ["22-0"]
        pending = client.xpending_range("s", "g", "-", "+", 10, consumername="d")
        assert [(one["message_id"], one["times_delivered"]) for one in pending] == [("21-0", 7), ("22-0", 1)]
        assert client.xpending_range("s", "g", "-", "+", 10, idle=60_000) == []
        assert client.xgroup_delconsumer("s", "g", "d") == 2
        info = client.xinfo_stream("s")
        assert (info["length"], info["groups"], info["entries-added"]) == (39, 1, 60)
        assert (info["max-deleted-entry-id"], info["recorded-first-entry-id"]) == ("30-0", "21-0")
        assert (info["first-entry"], info["last-entry"]) == (("21-0", {"n": "21"}), ("60-0", {"n": "60"}))
        full = client.xinfo_stream("s", full=True)
        assert full["groups"][0]["consumers"][0]["name"] == "c"
        assert {one["name"] for one in client.xinfo_consumers("s", "g")} == {"c", "idle"}
        assert client.xgroup_setid("s", "g", "$") is True
        assert client.xinfo_groups("s")[0]["lag"] == 0
        with pytest.raises(redis.ResponseError, match="NOGROUP"):
            client.xreadgroup("nobody", "c", {"s": ">"})
        with redis.Redis(port=server.port) as raw:
            raw.restore("restored", 0, raw.dump("s"))
            assert raw.xrange("restored") == raw.xrange("s")
            assert raw.xinfo_groups("restored") == raw.xinfo_groups("s")
        assert client.xgroup_destroy("s", "g") == 1
        assert list(client.scan_iter(_type="STREAM")) and client.object("ENCODING", "s") == "stream"


@pytest.mark.full
def test_collections_on_flash(start, tmp_path):
    """Twice as many bytes as memory: collections are read from flash, and changed there."""
    flash = ("--flash-file", tmp_path / "flash", "--flash-size", "256mb")
    server = start("--wal-size", "16mb", *flash, level=None, dir=tmp_path / "data", memory="64mb", threads=2)
    keys, value = 500, "v" * 50_000
    with redis.Redis(port=server.port) as client:
        for at in range(0, keys, 50):
            with client.pipeline(transaction=False) as pipe:
                for key in range(at, at + 50):
                    pipe.hset(f"h{key}", mapping={"key": key, "value": value})
                    for item in (key, value, "end"):
                        pipe.rpush(f"l{key}", item)
                pipe.execute()
        for key in range(0, keys, 7):
            assert client.hincrby(f"h{key}", "key", 1000) == key + 1000
            assert client.rpop(f"l{key}") == b"end"
    server.kill()
    server.start()
    with redis.Redis(port=server.port) as client:
        for key in range(keys):
            changed = key % 7 == 0
            assert client.hmget(f"h{key}", "key", "value") == [b"%d" % (key + 1000 * changed), value.encode()]
            assert client.lrange(f"l{key}", 0, -1) == [b"%d" % key, value.encode()] + [b"end"] * (not changed)


def until_done(work, what):
    """Repeats reads until no key is being recovered or moved."""

    def done():
        try:
            work()
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ClusterError) as error:
            print(what, repr(error))
            return False
        except redis.ResponseError as error:
            assert str(error).startswith(("NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN", "LOADING")), error
            return False
        except redis.exceptions.RedisClusterException as error:
            print(what, repr(error))
            return False
        return True

    harness.wait_until(done, what, pause_s=0.2)


@pytest.mark.parametrize("protocol", [harness.only_full(2), 3])
def test_every_type_through_a_migration_and_a_recovery(tmp_path, protocol):
    with Up(tmp_path, 4) as cluster:
        host, port = cluster.nodes[0].rsplit(":", 1)
        until_done(lambda: RedisCluster(host=host, port=int(port)).set("x", 1), "the cluster is ready")
        with RedisCluster(host=host, port=int(port), protocol=protocol) as client:
            for number in range(KEYS):
                keys = (f"list:{number}", f"stream:{number}")
                until_done(lambda: ([client.delete(key) for key in keys], write(client, number)), f"{number} is written")
                check(client, number)
            # At a server that does not own it.
            slot = client.keyslot("list:1")
            owner = client.nodes_manager.get_node_from_slot(slot)
            other = next(node for node in cluster.nodes if node != owner.name)
            with redis.Redis(host=host, port=harness.port_of(other)) as wrong:
                for call in (("LPUSH", "list:1", 1), ("ZUNION", 1, "list:1"), ("SORT", "list:1")):
                    with pytest.raises(redis.ResponseError, match=f"(MOVED )?{slot} {owner.name}"):
                        wrong.execute_command(*call)
            with pytest.raises(redis.ResponseError, match="don't hash to the same slot"):
                with redis.Redis(host=host, port=harness.port_of(other)) as wrong:
                    wrong.execute_command("SUNIONSTORE", "to", "set:1", "set:2")
            target = cluster.move_a_tablet()
            for number in range(KEYS):
                until_done(lambda: check(client, number), f"{number} after the migration")
            cluster.kill(target)
            for number in range(KEYS):
                until_done(lambda: check(client, number), f"{number} after the death of its server")
                until_done(lambda: client.lpush(f"list:{number}", "new"), f"{number} can be changed")
                assert client.lindex(f"list:{number}", 0) == b"new"


@pytest.mark.full
def test_every_type_after_the_end_of_a_whole_cluster(tmp_path):
    cluster = Cluster(tmp_path)
    try:
        for number in range(KEYS):
            cluster.call("HSET", f"hash {number}", "field", number)
            cluster.call("RPUSH", f"list {number}", number, "b")
            cluster.call("ZADD", f"zset {number}", number, "member")

        def all_there():
            for number in range(KEYS):
                assert cluster.call("HGETALL", f"hash {number}") == [b"field", b"%d" % number]
                assert cluster.call("LRANGE", f"list {number}", 0, -1)[-2:] == [b"%d" % number, b"b"]
                assert cluster.call("ZRANGE", f"zset {number}", 0, -1, "WITHSCORES") == [b"member", b"%d" % number]

        victim = cluster.members[1]
        victim.kill()
        all_there()
        victim.start()
        for process in [*cluster.members, cluster.coordinator]:
            process.kill()
        cluster.coordinator.start()
        for member in cluster.members:
            member.start()
        all_there()
    finally:
        cluster.close()


def cli(server, *arguments):
    command = [provide.program("redis-cli"), "-p", str(server.port), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=harness.PATIENCE_S).stdout.strip()


def test_redis_cli_shows_and_measures_collections(server, wire):
    assert cli(server, "RPUSH", "list", *range(50)) == "50"
    assert cli(server, "HSET", "hash", "f", "v") == "1"
    assert cli(server, "ZADD", "zset", "1.5", "m") == "1"
    assert cli(server, "SADD", "set", "m") == "1"
    assert cli(server, "ZRANGE", "zset", 0, -1, "WITHSCORES").split() == ["m", "1.5"]
    assert cli(server, "-3", "HGETALL", "hash") == '1# "f" => "v"' or cli(server, "HGETALL", "hash") == "f\nv"
    found = cli(server, "--bigkeys")
    assert "Biggest   list found" in found.replace('"', "") and "has 50 items" in found, found
    assert "Biggest   zset found" in found, found
    assert cli(server, "--scan", "--pattern", "z*") == "zset"
    assert cli(server, "SCAN", 0, "TYPE", "hash").split() == ["0", "hash"]


def test_interfaces_of_strings_refuse_collections(server, wire):
    wire.call("HSET", "h", "field", "value")
    wire.call("SET", "s", "string")
    refused = subprocess.run(
        [harness.BINARY, "get", "h", "--port", str(server.port)], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode != 0 and "WRONGTYPE" in refused.stderr, refused
    assert "field" not in refused.stdout + refused.stderr, refused
    for call in (("DURAMEN.READ", "h"), ("DURAMEN.INCRBY", "h", 1), ("DURAMEN.INCRBYFLOAT", "h", 1), ("APPEND", "h", "x")):
        with pytest.raises(harness.ErrorReply, match=WRONG_TYPE):
            wire.call(*call)
    refused, read = wire.call("DURAMEN.MREAD", "h", "s")
    assert str(refused) == WRONG_TYPE and read[0] == b"string"
    assert wire.call("DURAMEN.SCAN", 0, "COUNT", 100)[1][:2] == [b"s", b"string"]
    assert wire.call("MGET", "h", "s") == [None, b"string"]
    assert wire.call("DURAMEN.WRITE", "h", "now a string")[0] > 0
    assert wire.call("GET", "h") == b"now a string"


def test_limits_of_a_collection_are_named(server, wire):
    part = "x" * 100_000
    for n in range(10):
        assert wire.call("RPUSH", "list", part) == n + 1
    for call in (("RPUSH", "list", part), ("HSET", "hash", *("f", "v") * 1, "g", "x" * (1 << 20))):
        with pytest.raises(harness.ErrorReply, match=r"limit of 1048576 bytes or 131072 elements"):
            wire.call(*call)
    assert wire.call("LLEN", "list") == 10, "the refused change had no effect"
    began = time.monotonic()
    for n in range(0, 131_072, 4096):
        wire.call("SADD", "set", *range(n, n + 4096))
    assert wire.call("SCARD", "set") == 131_072
    with pytest.raises(harness.ErrorReply, match="131072 elements: split it over several keys"):
        wire.call("SADD", "set", "one more")
    assert wire.call("SADD", "set", 5) == 0
    print("131,072 members by requests of 4,096:", round(time.monotonic() - began, 1), "s")
    with pytest.raises(harness.ErrorReply, match="exceeds maximum allowed size"):
        wire.call("SETBIT", "bits", (1 << 23), 1)
    with pytest.raises(harness.ErrorReply, match="bit offset is not an integer or out of range"):
        wire.call("SETBIT", "bits", (1 << 32), 1)
