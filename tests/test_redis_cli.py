"""redis-cli, in the usual ways of people and scripts."""

import json
import os
import pty
import re
import select
import subprocess
import time

import pytest

import harness
import provide


@pytest.fixture(autouse=True, scope="module")
def redis_cli():
    provide.program("redis-cli")


@pytest.fixture
def cli(server, wire):
    def run(*arguments, stdin=b""):
        done = subprocess.run(
            ["redis-cli", "-p", str(server.port), *arguments],
            input=stdin,
            capture_output=True,
            timeout=harness.PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return run


@pytest.mark.parametrize("resp", ["-2", "-3"])
def test_set_get_del(cli, resp):
    assert cli(resp, "SET", "greeting", "hello") == "OK\n"
    assert cli(resp, "GET", "greeting") == "hello\n"
    assert cli(resp, "DEL", "greeting") == "1\n"
    assert cli(resp, "GET", "greeting") == "\n"


def test_value_from_standard_input(cli):
    assert cli("-x", "SET", "file", stdin=b"line 1\nline 2\n") == "OK\n"
    assert cli("STRLEN", "file") == "14\n"


def test_script_of_commands(cli):
    assert cli(stdin=b"SET a 1\nINCR a\nMULTI\nINCR a\nGET a\nEXEC\n") == "OK\n2\nOK\nQUEUED\nQUEUED\n3\n3\n"


def test_error_text(cli):
    assert cli("INCRBY", "a", "x") == "ERR value is not an integer or out of range\n\n"
    assert cli("GET") == "ERR wrong number of arguments for 'get' command\n\n"


def test_pipe_mode_loads_100_000_keys(cli):
    data = b"".join(harness.encode("SET", f"pipe:{i}", i) for i in range(100_000))
    said = cli("--pipe", stdin=data)
    assert "errors: 0, replies: 100000" in said
    assert cli("DBSIZE") == "100000\n"


def test_scan_mode_lists_every_key(cli, wire):
    wanted = {f"scan:{i}" for i in range(2000)}
    wire.pipeline([("SET", key, 1) for key in wanted])
    wire.call("SET", "other", 1)
    assert set(cli("--scan", "--pattern", "scan:*").split()) == wanted


def test_inline_commands(server):
    done = subprocess.run(
        ["redis-cli", "-p", str(server.port), "--no-raw", "PING"],
        capture_output=True,
        timeout=harness.PATIENCE_S,
        check=True,
    )
    assert done.stdout == b"PONG\n"
    with server.connect() as wire:
        wire.send(b"PING\r\nSET inline 'a b'\r\nGET inline\r\n")
        assert [wire.reply() for _ in range(3)] == [b"PONG", b"OK", b"a b"]


# --- The modes of redis-cli that inspect a server or load it.


@pytest.fixture
def some(wire):
    """A thousand keys; one is the largest, and one has by far the longest value."""
    wire.pipeline([("SET", f"some:{n}", "v" * (n % 50 + 1)) for n in range(1000)])
    wire.call("SET", "the-largest", "x" * 5000)


def watched(server, *arguments, lines, stop=True):
    """Runs redis-cli on a terminal until it has shown `lines` lines; returns them without colours.
    """
    ours, theirs = pty.openpty()
    command = ["redis-cli", "-p", str(server.port), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + harness.PATIENCE_S
    while shown.count(b"\n") + shown.count(b"\r") <= lines and time.monotonic() < deadline:
        readable, _, _ = select.select([ours], [], [], 1)
        try:
            chunk = os.read(ours, 65536) if readable else b" "
        except OSError:
            break  # it has ended
        shown += chunk.strip(b" ")
    if stop:
        process.kill()
    process.wait(harness.PATIENCE_S)
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "\n", shown.decode())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_stat_mode_shows_keys_memory_and_requests(server, some):
    shown = watched(server, "--stat", "-i", "0.1", lines=8)
    rows = [line.split() for line in shown if re.match(r"\d+ ", line)]
    assert len(rows) >= 3, shown
    for keys, memory, clients, blocked, requests, *_ in rows:
        assert (keys, blocked) == ("1001", "0") and re.fullmatch(r"\d+\.\d+[MG]", memory), rows
        assert int(clients) >= 1 and int(requests) >= 1000, rows
    assert int(rows[-1][4]) > int(rows[0][4])


@pytest.mark.parametrize("mode, size", [("--bigkeys", 5000), ("--memkeys", 5011)])
def test_big_keys_are_found(cli, some, mode, size):
    said = cli(mode)
    found = re.search(r"""Biggest string found '"the-largest"' has (\d+) bytes""", said)
    assert found and size <= int(found[1]) < size + 50, said
    assert "Sampled 1001 keys in the keyspace!" in said and "1001 strings with" in said


def test_hot_keys_are_refused_in_words(server, some):
    """Redis, without an LFU policy, refuses as well."""
    done = subprocess.run(["redis-cli", "-p", str(server.port), "--hotkeys"], capture_output=True, text=True, timeout=harness.PATIENCE_S, check=False)
    assert done.returncode == 1 and "LFU" in done.stdout + done.stderr, done


@pytest.mark.full
def test_latency_modes(server):
    csv = subprocess.run(["redis-cli", "-p", str(server.port), "--latency", "-i", "4", "--csv"], capture_output=True, text=True, timeout=harness.PATIENCE_S, check=True)
    least, most, average, count = map(float, csv.stdout.strip().split(","))
    assert 0 <= least <= average <= most and count > 10, csv.stdout
    history = [line for line in watched(server, "--latency-history", "-i", "0.3", lines=40) if "seconds range" in line]
    assert history and all(re.search(r"min: \d+, max: \d+, avg: \d+\.\d+ \(\d+ samples\)", line) for line in history)
    assert watched(server, "--latency-dist", "-i", "0.2", lines=6)


def test_intrinsic_latency(cli):
    assert "Max latency so far" in cli("--intrinsic-latency", "1")


def test_replicas_and_copies_are_refused_in_words(server, tmp_path):
    for arguments in (["--rdb", str(tmp_path / "copy.rdb")], ["--replica"], ["--functions-rdb", str(tmp_path / "functions.rdb")]):
        done = subprocess.run(["redis-cli", "-p", str(server.port), *arguments], capture_output=True, text=True, timeout=harness.PATIENCE_S, check=False)
        assert done.returncode == 1, (arguments, done)
        assert "is not supported" in done.stdout + done.stderr, (arguments, done)


def test_repeated_and_formatted(cli):
    began = time.monotonic()
    assert cli("-r", "3", "-i", "0.1", "INCR", "times") == "1\n2\n3\n"
    assert time.monotonic() - began >= 0.2
    cli("MSET", "a", 'x"y', "b", "2")
    assert cli("--csv", "MGET", "a", "b", "none") == '"x\\"y","2",NULL\n'
    assert json.loads(cli("--json", "MGET", "a", "b", "none")) == ['x"y', "2", None]
    assert json.loads(cli("--json", "CONFIG", "GET", "databases")) == {"databases": "16"}
    assert json.loads(cli("-3", "--json", "LATENCY", "HISTOGRAM", "mset"))["mset"]["calls"] == 1


def test_scan_with_pattern_type_and_count(cli, wire):
    wire.pipeline([("SET", f"p:{n}", 1) for n in range(100)])
    assert len(cli("--scan", "--pattern", "p:1*").split()) == 11
    assert len(cli("SCAN", "0", "MATCH", "p:1*", "COUNT", "1000", "TYPE", "string").split()) == 1 + 11
    assert cli("--scan", "--pattern", "nothing*") == ""
