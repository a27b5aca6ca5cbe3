"""redis-cli, as people and scripts use it."""

import subprocess

import pytest

import harness


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
