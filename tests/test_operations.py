"""Commands for an operator: INFO, CONFIG, CLIENT, SLOWLOG, LATENCY, MEMORY, MONITOR, COMMAND."""

import pytest

import harness
from harness import Closed, ErrorReply, encode


def fields(wire, section):
    text = wire.call("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


@pytest.mark.parametrize(
    "section, names",
    [
        ("server", ["redis_version", "redis_mode", "os", "process_id", "tcp_port", "uptime_in_seconds", "config_file"]),
        ("clients", ["connected_clients", "maxclients", "blocked_clients"]),
        ("memory", ["used_memory", "used_memory_human", "used_memory_rss", "maxmemory", "mem_fragmentation_ratio"]),
        ("persistence", ["loading", "rdb_changes_since_last_save", "aof_enabled"]),
        ("stats", ["total_connections_received", "total_commands_processed", "keyspace_hits", "evicted_keys", "expired_keys"]),
        ("replication", ["role", "connected_slaves", "master_repl_offset"]),
        ("cpu", ["used_cpu_sys", "used_cpu_user"]),
    ],
)
def test_info_has_the_fields_that_monitoring_reads(wire, section, names):
    found = fields(wire, section)
    assert not [name for name in names if name not in found]
    everything = fields(wire, "everything")
    assert not [name for name in names if name not in everything]


def test_info_counts(wire):
    before = fields(wire, "stats")
    wire.pipeline([("SET", "k", 1), ("GET", "k"), ("GET", "none"), ("GET", "k")])
    after = fields(wire, "stats")
    for name, more in (("keyspace_hits", 2), ("keyspace_misses", 1)):
        assert int(after[name]) - int(before[name]) == more
    assert int(after["total_commands_processed"]) - int(before["total_commands_processed"]) >= 4
    assert fields(wire, "keyspace")["db0"].startswith("keys=1,expires=0")


def test_info_follows_several_threads(server, wire):
    before = int(fields(wire, "stats")["total_commands_processed"])
    others = [server.connect() for _ in range(16)]
    for other in others:
        other.pipeline([("PING",)] * 100)
        other.close()
    assert int(fields(wire, "stats")["total_commands_processed"]) - before >= 1600


def test_config_set_takes_effect(wire):
    assert wire.call("CONFIG", "GET", "maxclients") == [b"maxclients", b"10000"]
    assert wire.call("CONFIG", "SET", "maxclients", 9000) == b"OK"
    assert wire.call("CONFIG", "GET", "maxclients") == [b"maxclients", b"9000"]
    assert wire.call("CONFIG", "SET", "maxclients", 10000) == b"OK"
    with pytest.raises(ErrorReply, match="CONFIG SET failed"):
        wire.call("CONFIG", "SET", "tcp-backlog", 1)
    found = wire.call("CONFIG", "GET", "maxmemory*")
    assert {b"maxmemory", b"maxmemory-policy"} <= set(found[::2])


def test_client_list_and_kill(server, wire):
    with server.connect() as other:
        other.call("CLIENT", "SETNAME", "victim")
        number = other.call("CLIENT", "ID")
        lines = wire.call("CLIENT", "LIST").decode().splitlines()
        victims = [line for line in lines if f"id={number} " in line]
        assert len(victims) == 1 and "name=victim" in victims[0]
        assert wire.call("CLIENT", "KILL", "ID", number) == 1
        assert other.drain() == b""
    harness.wait_until(
        lambda: "name=victim" not in wire.call("CLIENT", "LIST").decode(), "the killed client is off the list"
    )


def test_client_pause_holds_commands_back(server, wire):
    with server.connect() as other:
        assert wire.call("CLIENT", "PAUSE", 60_000, "WRITE") == b"OK"
        other.send(encode("GET", "k"))
        assert other.reply() is None
        other.send(encode("SET", "k", "v"))
        assert wire.call("GET", "k") is None
        assert wire.call("CLIENT", "UNPAUSE") == b"OK"
        assert other.reply() == b"OK"
        assert wire.call("GET", "k") == b"v"


def test_monitor_shows_commands(server, wire):
    with server.connect() as watcher:
        assert watcher.call("MONITOR") == b"OK"
        wire.call("SET", "seen", "a\nb")
        while b'"SET" "seen"' not in (line := watcher.reply()):
            pass
        assert line.endswith(b'"SET" "seen" "a\\nb"')


def test_slow_log_keeps_slow_commands(server, wire):
    try:
        wire.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
        wire.call("SLOWLOG", "RESET")
        wire.call("SET", "slow", "x" * 1000)
        entries = harness.wait_until(
            lambda: [entry for entry in wire.call("SLOWLOG", "GET", 100) if entry[3][:2] == [b"SET", b"slow"]],
            "the command is in the slow log",
        )
        assert entries[0][1] > 1_700_000_000 and entries[0][2] >= 0
    finally:
        wire.call("CONFIG", "SET", "slowlog-log-slower-than", 10_000)


def test_memory_usage(wire):
    wire.call("SET", "k", "v" * 10_000)
    assert 10_000 <= wire.call("MEMORY", "USAGE", "k") <= 12_500
    assert wire.call("MEMORY", "USAGE", "none") is None
    assert wire.call("MEMORY", "DOCTOR")
    stats = wire.call("MEMORY", "STATS")
    assert b"peak.allocated" in stats or b"total.allocated" in stats


def test_command_tables_that_clients_read(wire):
    assert wire.call("COMMAND", "COUNT") > 80
    info = wire.call("COMMAND", "INFO", "get", "set", "mget")
    assert [[entry[0], entry[1], *entry[3:6]] for entry in info] == [
        [b"get", 2, 1, 1, 1],
        [b"set", -3, 1, 1, 1],
        [b"mget", -2, 1, -1, 1],
    ]
    assert b"readonly" in info[0][2] and b"write" in info[1][2]
    names = {entry[0] for entry in wire.call("COMMAND")}
    assert {b"get", b"set", b"exec", b"scan", b"info"} <= names
    docs = wire.call("COMMAND", "DOCS", "get")
    assert docs[0] == b"get" and b"summary" in docs[1]


def test_databases_are_apart(server, wire):
    wire.call("SET", "k", "zero")
    with server.connect() as other:
        other.call("SELECT", 1)
        assert other.call("GET", "k") is None
        other.call("SET", "k", "one")
        assert other.call("DBSIZE") == 1
        assert other.call("MOVE", "k", 0) == 0
        assert other.call("RENAME", "k", "m") == b"OK"
        assert other.call("MOVE", "m", 0) == 1
        assert other.call("DBSIZE") == 0
    assert wire.call("GET", "m") == b"one"
    assert wire.call("COPY", "m", "c", "DB", 1) == 1
    assert wire.call("EXISTS", "c") == 0


def test_reset_and_quit(server):
    with server.connect() as wire:
        wire.call("HELLO", 3)
        wire.call("CLIENT", "SETNAME", "me")
        wire.call("MULTI")
        assert wire.call("RESET") == b"RESET"
        with pytest.raises(ErrorReply, match="EXEC without MULTI"):
            wire.call("EXEC")
        assert wire.call("CLIENT", "GETNAME") in (None, b"")
        wire.send(encode("QUIT") + encode("SET", "after-quit", 1))
        assert wire.reply() == b"OK"
        with pytest.raises(Closed):
            wire.reply()
    with server.connect() as wire:
        assert wire.call("EXISTS", "after-quit") == 0


def test_shutdown_waits_for_nobody(start):
    server = start()
    idle = [server.connect() for _ in range(50)]
    for wire in idle:
        assert wire.call("PING") == b"PONG"
    assert server.stop() == 0
    for wire in idle:
        wire.close()
