"""DURAMEN.*: object versions, conditions, tables, through any RESP connection."""

import pytest

import harness
from harness import ErrorReply

pytestmark = pytest.mark.duramen


def write(wire, *arguments):
    """The object version after a write."""
    version, level = wire.call("DURAMEN.WRITE", *arguments)
    assert level == b"memory"
    return version


def test_read_gives_value_and_version(wire):
    assert wire.call("DURAMEN.READ", "k") is None
    version = write(wire, "k", "v")
    assert version >= 1
    assert wire.call("DURAMEN.READ", "k") == [b"v", version]
    assert wire.call("GET", "k") == b"v"


def test_versions_only_grow_across_delete_and_recreate(wire):
    seen = [write(wire, "k", "a"), write(wire, "k", "b")]
    wire.call("SET", "k", "c")
    seen.append(wire.call("DURAMEN.READ", "k")[1])
    wire.call("DEL", "k")
    seen.append(write(wire, "k", "d"))
    wire.call("DURAMEN.REMOVE", "k")
    wire.call("SET", "k", "e")
    seen.append(wire.call("DURAMEN.READ", "k")[1])
    wire.call("FLUSHALL")
    seen.append(write(wire, "k", "f"))
    wire.call("SET", "k", "g", "PX", 1)
    harness.wait_until(lambda: wire.call("GET", "k") is None, "the key expires")
    seen.append(write(wire, "k", "h"))
    assert seen == sorted(set(seen))


def test_conditions(wire):
    version = write(wire, "k", "a", "IFABSENT")
    for condition in (("IFABSENT",), ("IFVERSION", version + 1), ("IFNEWER", version)):
        with pytest.raises(ErrorReply, match="WRONGVERSION"):
            write(wire, "k", "b", *condition)
    assert wire.call("DURAMEN.READ", "k") == [b"a", version]
    second = write(wire, "k", "b", "IFVERSION", version)
    third = write(wire, "k", "c", "IFPRESENT")
    assert version < second < third
    assert write(wire, "k", "d", "IFNEWER", third + 1) > third
    with pytest.raises(ErrorReply, match="WRONGVERSION"):
        write(wire, "none", "b", "IFPRESENT")
    assert wire.call("EXISTS", "none") == 0


def test_two_writers_with_one_version_one_wins(server, wire):
    version = write(wire, "k", "a")
    with server.connect() as other:
        for connection in (wire, other):
            connection.send(harness.encode("DURAMEN.WRITE", "k", "b", "IFVERSION", version))
        replies = [wire.reply_or_error(), other.reply_or_error()]
    assert sum(isinstance(reply, ErrorReply) for reply in replies) == 1


def test_increments_give_versions(wire):
    value, first = wire.call("DURAMEN.INCRBY", "n", 5)
    assert value == 5
    value, second = wire.call("DURAMEN.INCRBY", "n", -7)
    assert value == -2 and second > first
    value, third = wire.call("DURAMEN.INCRBYFLOAT", "n", "0.5")
    assert value == b"-1.5" and third > second


def test_multi_forms_answer_part_by_part(wire):
    written = wire.call("DURAMEN.MWRITE", "a", 1, "b" * 70_000, 2, "c", 3)
    assert written[0][1] == b"memory" and written[2][1] == b"memory"
    assert isinstance(written[1], ErrorReply)
    read = wire.call("DURAMEN.MREAD", "a", "none", "c")
    assert [read[0][0], read[1], read[2][0]] == [b"1", None, b"3"]
    removed = wire.call("DURAMEN.MREMOVE", "a", "none")
    assert removed[0][0] == read[0][1] and removed[1] is None


def test_tables_are_apart(server, wire):
    table = wire.call("DURAMEN.TABLE", "CREATE", "orders")
    try:
        assert wire.call("DURAMEN.TABLE", "ID", "orders") == table
        with pytest.raises(ErrorReply):
            wire.call("DURAMEN.TABLE", "CREATE", "orders")
        wire.call("SET", "k", "default")
        with server.connect() as other:
            assert other.call("DURAMEN.USE", "orders") == b"OK"
            assert other.call("GET", "k") is None
            other.call("SET", "k", "order")
            assert other.call("DBSIZE") == 1
        assert wire.call("GET", "k") == b"default"
        listed = {entry[entry.index(b"name") + 1] for entry in wire.call("DURAMEN.TABLE", "LIST")}
        assert {b"default", b"orders"} <= listed
    finally:
        assert wire.call("DURAMEN.TABLE", "DROP", "orders") == b"OK"
    with pytest.raises(ErrorReply, match="orders"):
        wire.call("DURAMEN.USE", "orders")
    assert wire.call("GET", "k") == b"default"


def test_exec_is_null_if_the_table_of_a_watched_key_was_dropped(server, wire):
    """It was an error about a table that was not even selected, after eight attempts."""
    wire.call("DURAMEN.TABLE", "CREATE", "watched")
    wire.call("DURAMEN.USE", "watched")
    wire.call("WATCH", "k")
    wire.call("DURAMEN.USE", "default")
    with server.connect() as other:
        other.call("DURAMEN.TABLE", "DROP", "watched")
    assert wire.pipeline([("MULTI",), ("SET", "a", "1"), ("EXEC",), ("GET", "a")])[2:] == [None, None]


def test_a_table_made_again_is_empty(wire):
    for _ in range(2):
        wire.call("DURAMEN.TABLE", "CREATE", "again")
        wire.call("DURAMEN.USE", "again")
        assert wire.call("DBSIZE") == 0
        assert wire.call("GET", "k") is None
        wire.call("SET", "k", "v")
        wire.call("DURAMEN.USE", "default")
        wire.call("DURAMEN.TABLE", "DROP", "again")


def test_scan_gives_versions(wire):
    wanted = {}
    for i in range(500):
        wanted[b"k%d" % i] = (b"v%d" % i, write(wire, f"k{i}", f"v{i}"))
    found, cursor = {}, 0
    while True:
        cursor, objects = wire.call("DURAMEN.SCAN", cursor, "COUNT", 50)
        for key, value, version in zip(objects[::3], objects[1::3], objects[2::3]):
            found[key] = (value, version)
        if cursor == b"0":
            break
    assert found == wanted


def test_no_level_but_memory_yet(wire):
    for level in ("buffered", "synced"):
        with pytest.raises(ErrorReply, match="memory"):
            wire.call("DURAMEN.WRITE", "k", "v", "LEVEL", level)
    assert wire.call("EXISTS", "k") == 0
    write(wire, "k", "v", "LEVEL", "memory")


def test_transactions_are_atomic_to_other_threads(server, wire):
    """A reader that saw half of a transaction would find two different values."""
    rounds = 300
    wire.call("MSET", "left", -1, "right", -1)
    with server.connect() as writer:
        writer.send(
            b"".join(
                harness.encode("MULTI")
                + harness.encode("SET", "left", i)
                + harness.encode("SET", "right", i)
                + harness.encode("EXEC")
                for i in range(rounds)
            )
        )
        seen = b""
        while seen != b"%d" % (rounds - 1):
            seen, right = wire.call("MGET", "left", "right")
            assert seen == right
        for _ in range(rounds):
            assert [writer.reply() for _ in range(4)] == [b"OK", b"QUEUED", b"QUEUED", [b"OK", b"OK"]]


def test_scan_shows_every_key_that_stays_while_the_index_grows(server, wire):
    stays = {b"stays:%d" % i for i in range(5000)}
    wire.load(sorted(stays), b"v")
    found, cursor, added = set(), b"0", 0
    with server.connect() as other:
        while True:
            cursor, keys = wire.call("SCAN", cursor, "COUNT", 20)
            found.update(keys)
            if cursor == b"0":
                break
            if added < 100_000:
                other.load([b"comes:%d" % i for i in range(added, added + 400)], b"v")
                added += 400
    assert stays <= found


@pytest.mark.parametrize(
    "command",
    ["HEXPIRE", "PFDEBUG", "FUNCTION", "CLUSTER"],
)
def test_commands_of_other_kinds_get_a_clear_error(wire, command):
    with pytest.raises(ErrorReply) as refused:
        wire.call(command, "a", "b", "c")
    text = str(refused.value)
    assert text.startswith("ERR ") and command.split()[0].lower() in text.lower()
    assert "unknown command" not in text
    assert wire.call("PING") == b"PONG"
