"""Flags, environment, duramen.toml, start and stop: everything before the first command."""

import os
import re
import signal
import socket
import time

import pytest

import harness

pytestmark = pytest.mark.duramen


def refusal(*arguments, **options):
    """The message of `duramen serve` when it refuses to start."""
    port = () if "--port" in arguments else ("--port", 0)
    done = harness.duramen("serve", *port, "--admin-port", 0, *arguments, **options)
    assert done.returncode not in (0, 101), f"exit code {done.returncode}, said: {done.stderr}"
    assert "ready " not in done.stdout
    return done.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--memory", "1mb"), ["memory", "1mb", "minimum", "64mb"]),
        (("--memory", "banana"), ["memory", "banana"]),
        (("--memory", "999999tb"), ["memory"]),
        (("--memmory", "1gb"), ["--memmory", "--memory"]),
        (("--mode", "shop"), ["mode", "shop", "store", "cache"]),
        (("--port", "70000"), ["port", "70000"]),
        (("--threads", "many"), ["threads", "many"]),
        (("--level", "forever"), ["forever", "memory", "buffered", "synced"]),
        (("--bind", "0.0.0.0"), ["0.0.0.0", "127.0.0.1"]),
        (("--bind", "nowhere"), ["bind", "nowhere"]),
        (("--config", "none.toml"), ["none.toml"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_flag_names_what_and_why(arguments, words):
    said = refusal(*arguments)
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    "text, words",
    [
        ('memroy = "1gb"', ["memroy", "memory"]),
        ("max-clients = 5", ["max-clients", "maxclients"]),
        ('memory = "1mb"', ["memory", "1mb"]),
        ("maxclients = -1", ["maxclients", "-1"]),
        ("port = [", ["duramen.toml"]),
    ],
)
def test_bad_file_names_key_and_file(tmp_path, text, words):
    path = tmp_path / "duramen.toml"
    path.write_text(text + "\n")
    for said in (refusal("--config", path), harness.duramen("config", "check", path).stderr):
        assert "duramen.toml" in said
        for word in words:
            assert word in said


def test_unknown_environment_variable_names_the_nearest(start):
    """A warning: a variable of another program may begin with DURAMEN_ too."""
    log = start(environment={"DURAMEN_MEMROY": "1gb"}).log()
    assert "DURAMEN_MEMROY" in log and "DURAMEN_MEMORY" in log


def maxclients(server):
    with server.connect() as wire:
        return wire.call("CONFIG", "GET", "maxclients")[1]


def test_flags_beat_environment_beats_file_beats_defaults(start, tmp_path):
    path = tmp_path / "duramen.toml"
    path.write_text("maxclients = 11\n")
    file = ("--config", path)
    environment = {"DURAMEN_MAXCLIENTS": "12"}
    assert maxclients(start(*file)) == b"11"
    assert maxclients(start(*file, environment=environment)) == b"12"
    assert maxclients(start(*file, "--maxclients", 13, environment=environment)) == b"13"


def test_config_print_shows_where_each_value_comes_from(tmp_path):
    path = tmp_path / "duramen.toml"
    path.write_text("maxclients = 11\n")
    done = harness.duramen("config", "print", "--show-origin", "--config", path, variables={"DURAMEN_TIMEOUT": "7"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any("maxclients" in line and "11" in line and "duramen.toml" in line for line in lines), done.stdout
    assert any("timeout" in line and "7" in line and "DURAMEN_TIMEOUT" in line for line in lines), done.stdout
    assert any("memory" in line and "default" in line for line in lines), done.stdout


def test_config_rewrite_makes_config_set_last(start, tmp_path):
    path = tmp_path / "duramen.toml"
    path.write_text("# The house's server.\nmaxclients = 11  # people\ntcp-backlog = 77\n")
    path.chmod(0o640)
    server = start("--config", "duramen.toml", "--stop-timeout-ms", 900)
    assert server.info()["config_file"] == str(path.resolve())
    with server.connect() as wire:
        assert wire.call("CONFIG", "SET", "maxclients", 22, "timeout", 77, "requirepass", "hush") == b"OK"
        assert wire.call("CONFIG", "REWRITE") == b"OK"
    expected = "# The house's server.\nmaxclients = 22  # people\ntcp-backlog = 77\n\n# Added by CONFIG REWRITE\ntimeout = 77\n"
    assert path.read_text() == expected, "flags and secrets stay out of it"
    assert path.stat().st_mode & 0o7777 == 0o640
    done = harness.duramen("config", "print", "--show-origin", folder=tmp_path)
    assert "maxclients = 22  # duramen.toml:2\n" in done.stdout
    assert "timeout = 77  # duramen.toml:6\n" in done.stdout
    assert server.stop() == 0
    assert maxclients(server.start()) == b"22"


class Unprivileged(harness.Duramen):
    """A server that is bound by permissions, even if the tests run as root."""

    def command(self):
        root = os.geteuid() == 0
        return [*(["setpriv", "--bounding-set=-dac_override"] if root else []), *super().command()]


def test_config_rewrite_that_fails_leaves_the_file(tmp_path):
    folder = tmp_path / "set\ntings"  # one line end in an error is the end of the reply
    folder.mkdir()
    path = folder / "duramen.toml"
    path.write_text("maxclients = 11\n")
    with Unprivileged(tmp_path, "--config", path) as server, server.connect() as wire:
        assert wire.call("CONFIG", "SET", "maxclients", 22) == b"OK"
        folder.chmod(0o555)
        try:
            with pytest.raises(harness.ErrorReply, match="^ERR Rewriting config file: .*Permission denied"):
                wire.call("CONFIG", "REWRITE")
            assert wire.call("PING") == b"PONG"
        finally:
            folder.chmod(0o755)
        assert path.read_text() == "maxclients = 11\n"
        assert [entry.name for entry in folder.iterdir()] == ["duramen.toml"]
        assert wire.call("CONFIG", "REWRITE") == b"OK", "once the folder can be written"
        assert path.read_text() == "maxclients = 22\n"


def test_config_rewrite_without_a_file(start):
    server = start()
    assert server.info()["config_file"] == ""
    with server.connect() as wire, pytest.raises(harness.ErrorReply, match="^ERR The server is running without a config file$"):
        wire.call("CONFIG", "REWRITE")


def test_config_print_is_a_valid_file(tmp_path):
    path = tmp_path / "duramen.toml"
    path.write_text(harness.duramen("config", "print").stdout)
    done = harness.duramen("config", "check", path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "setting, text",
    [("aclfile", "user alice +@nothing\n"), ("cluster-token-file", "short\n"), ("encryption-key-file", "no key\n"), ("aclfile", None)],
)
def test_config_check_looks_into_files(tmp_path, setting, text):
    """It called settings correct with which a server does not start."""
    file, path = tmp_path / "file", tmp_path / "duramen.toml"
    path.write_text(f'{setting} = "{file}"\n')
    if text:
        file.write_text(text)
        file.chmod(0o600)
    done = harness.duramen("config", "check", path)
    assert done.returncode == 2 and str(file) in done.stderr, done


def test_config_check_looks_at_what_serve_would(tmp_path):
    """It found its file differently from `serve` and `config print`, and read neither
    DURAMEN_CONFIG nor other variables."""
    path = tmp_path / "mine.toml"
    path.write_text("maxclients = 11\nmaxmemory = '1.5gb'\n")
    for arguments, environment in (
        (("--config", path), {}),
        ((path,), {}),
        ((), {"DURAMEN_CONFIG": str(path)}),
    ):
        done = harness.duramen("config", "check", *arguments, folder=tmp_path, variables=environment)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert "mine.toml: correct, 2 of " in done.stdout, done
    bad = harness.duramen("config", "check", folder=tmp_path, variables={"DURAMEN_PORT": "70000"})
    assert bad.returncode == 2 and "70000" in bad.stderr and "DURAMEN_PORT" in bad.stderr, bad
    bad = harness.duramen("config", "check", folder=tmp_path, variables={"DURAMEN_MEMORY": "16tb"})
    assert bad.returncode == 2 and "memory: 16" in bad.stderr, bad
    none = harness.duramen("config", "check", folder=tmp_path)
    assert none.returncode == 0 and "no duramen.toml here" in none.stdout, none
    assert harness.duramen("config", "check", path, "--config", path).returncode == 2


def test_a_file_of_settings_has_an_end(tmp_path):
    """`config check --config /dev/zero` read until there was no memory."""
    long = tmp_path / "long.toml"
    long.write_text("#" * (1 << 20) + "\n")
    for path in ("/dev/zero", long):
        for said in (harness.duramen("config", "check", "--config", path).stderr, refusal("--config", path)):
            assert "more than 1 MiB" in said, said
    assert "more than 1 MiB" in refusal("--level", "memory", "--coordinator", "127.0.0.1:1", "--cluster-token-file", "/dev/zero")


def test_variables_that_are_not_text(tmp_path):
    """Any variable that was not UTF-8, of whatever program, ended `serve` and `config` with SIGABRT."""
    done = harness.duramen("config", "check", folder=tmp_path, variables={"LESSCHARDEF": "\udcff", "DURAMEN_OTHER": "\udcff"})
    assert done.returncode == 0, done
    done = harness.duramen("config", "check", folder=tmp_path, variables={"DURAMEN_DIR": "\udcff"})
    assert done.returncode == 2 and "the value of DURAMEN_DIR is not UTF-8" in done.stderr, done


def test_a_change_of_the_level_loses_no_directory(start, tmp_path):
    """`CONFIG SET level memory` on a server without `dir` sent snapshots to the working directory,
    and after CONFIG REWRITE the next start was an empty store without files."""
    path = tmp_path / "duramen.toml"
    path.write_text("maxclients = 100\n")
    server = start(level=None)
    with server.connect() as wire:
        wire.call("SET", "precious", "data")
        assert wire.call("CONFIG", "SET", "level", "memory") == b"OK"
        assert server.info()["duramen_dir"] == "duramen-data"
        assert wire.call("SAVE") == b"OK"
        assert (tmp_path / "duramen-data/snapshots/dump").is_dir() and not (tmp_path / "snapshots").exists()
        assert wire.call("CONFIG", "REWRITE") == b"OK"
    assert 'dir = "duramen-data"' in path.read_text() and 'level = "memory"' in path.read_text()
    server.stop()
    with server.start().connect() as wire:
        assert wire.call("GET", "precious") == b"data"
    server.stop()
    # The file says it without `dir`, as after SIGHUP of an edited file.
    path.write_text('level = "memory"\n')
    said = refusal(folder=tmp_path)
    assert "duramen-data" in said and "--dir duramen-data" in said and "another folder" in said, said
    start(mode="cache", level=None).stop()


def test_a_cache_that_becomes_a_store_stays_in_memory(start, tmp_path):
    """The level of a cache follows from its mode: as a store it would demand a directory."""
    path = tmp_path / "duramen.toml"
    path.write_text("maxclients = 100\n")
    server = start(mode="cache", level=None)
    with server.connect() as wire:
        assert wire.call("CONFIG", "SET", "maxmemory-policy", "noeviction") == b"OK"
        assert wire.call("SET", "k", "v") == b"OK"
        assert wire.call("CONFIG", "REWRITE") == b"OK"
    server.stop()
    lines = path.read_text().splitlines()
    assert 'level = "memory"' in lines and 'mode = "cache"' not in lines, lines
    assert not (tmp_path / "duramen-data").exists()


def test_a_server_in_memory_promises_no_more(server, wire):
    """`CONFIG SET level auto` was accepted, and everything said `synced`; there was no file."""
    with pytest.raises(harness.ErrorReply, match="in memory alone"):
        wire.call("CONFIG", "SET", "level", "auto")
    assert wire.call("CONFIG", "GET", "level") == [b"level", b"memory"]
    assert wire.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"no"]
    assert wire.call("CONFIG", "SET", "level", "memory") == b"OK"


def test_flags_of_redis_have_advice(tmp_path):
    done = harness.duramen("serve", "--appendonly", "yes", folder=tmp_path)
    assert done.returncode == 2 and "--appendonly" in done.stderr and "`level`" in done.stderr, done


def test_every_setting_is_in_the_operations_page():
    page = (harness.pathlib.Path(__file__).parent.parent / "docs/operations.md").read_text()
    printed = harness.duramen("config", "print").stdout
    names = re.findall(r"^#? ?([a-z][a-z-]*) = ", printed, re.MULTILINE)
    assert len(names) > 20, printed
    missing = [name for name in names if f"| `{name}` |" not in page]
    assert not missing


def test_port_in_use(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal("--port", port)
        assert str(port) in said and "in use" in said.lower()


def test_ready_line_and_what_is_said_at_start(start):
    server = start()
    assert server.port > 0 and server.admin_port > 0
    log = server.log()
    assert re.search(r"level\W+memory", log), log
    assert "survive" in log or "lost" in log, log
    assert "page" in log, log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_cleanly(start, number):
    server = start()
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"
        server.process.send_signal(number)
        assert wire.drain() == b""
    assert server.end() == 0


@pytest.mark.parametrize("gap_s", [0, 0.002, 0.02])
def test_a_second_signal_ends_the_server_as_soon_as_it_can(start, tmp_path, gap_s):
    """It always slept for 3 s, and then returned the exit code of a stuck server."""
    server = start(dir=tmp_path / "data", level=None)
    fastest = 60
    # It needs the clock, because a sleep is no work. A busy machine may delay one end, not each.
    for _ in range(5):
        with server.connect() as wire:
            wire.call("SET", "k", "v")
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            time.sleep(gap_s)
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 0, server.log()
        fastest = min(fastest, time.monotonic() - began)
        if fastest < 2.5:
            break
        server.start()
    assert fastest < 2.5


def test_stop_answers_what_it_has_read(start):
    server = start()
    with server.connect() as wire:
        assert wire.call("PING") == b"PONG"
        wire.send(harness.encode("SET", "k", "v") * 1000)
        assert wire.reply() == b"OK"
        assert server.stop() == 0
        rest = wire.drain()
        assert rest == b"+OK\r\n" * (len(rest) // 5)


def test_shutdown_command(start):
    server = start()
    with server.connect() as wire:
        wire.send(harness.encode("SHUTDOWN", "NOSAVE"))
        assert wire.drain() == b""
    assert server.end() == 0


def test_the_level_is_said_in_info(server):
    assert server.info()["duramen_level"] == "memory"


def test_help_teaches():
    done = harness.duramen("--help")
    assert done.returncode == 0
    for command in ("serve", "get", "set", "scan", "top", "bench", "config", "completions"):
        assert re.search(rf"^\s+{command}\b", done.stdout, re.MULTILINE), done.stdout
    serve = harness.duramen("serve", "--help").stdout
    for flag in ("--memory", "--port", "--threads", "--mode", "--poll", "--bind", "--config", "--admin-port"):
        assert flag in serve


def test_help_and_the_operations_page_have_the_same_exit_codes():
    """The page had exit code 1 for a server that could not start, which ends with 5, and did not
    mention 5."""
    page = (harness.pathlib.Path(__file__).parent.parent / "docs/operations.md").read_text().split("## Exit codes")[1]
    told = harness.duramen("--help").stdout.split("EXIT CODES")[1]
    codes = [re.findall(pattern, text, re.MULTILINE) for pattern, text in ((r"^\| (\d) \|", page), (r"^  (\d)  ", told))]
    assert codes[0] == codes[1] == list("0123456"), codes


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(shell):
    done = harness.duramen("completions", shell)
    assert done.returncode == 0 and "duramen" in done.stdout


def test_command_line_client(server, wire):
    def run(*arguments):
        done = harness.duramen(*arguments, "--port", server.port)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("set", "greeting", "hello")
    assert run("get", "greeting") == "hello\n"
    assert run("incr", "count") == "1\n"
    assert set(run("scan").split()) == {"greeting", "count"}
    run("del", "greeting")
    gone = harness.duramen("get", "greeting", "--port", server.port)
    assert gone.returncode == 1, "a missing key has an exit code of its own"


def test_command_line_client_without_a_server():
    done = harness.duramen("get", "k", "--port", harness.free_port())
    assert done.returncode not in (0, 1, 101)
    assert "127.0.0.1" in done.stderr and "panicked" not in done.stderr


def test_a_password_that_nobody_can_give_is_refused(start, tmp_path):
    """Bytes that are no UTF-8 were replaced, and a long password did not fit into AUTH: afterwards
    nobody could authenticate. Line breaks and NUL were refused, which Redis takes."""
    server = start(dir=tmp_path / "data", level=None)
    with server.connect() as wire:
        for name in ("requirepass", "snapshot-dir"):
            with pytest.raises(harness.ErrorReply, match="UTF-8"):
                wire.call("CONFIG", "SET", name, b"\xff\xfeabc")
        for length in (20_000, 16_384, 16_300):
            with pytest.raises(harness.ErrorReply, match="at most 16256 .preauth-limit"):
                wire.call("CONFIG", "SET", "requirepass", "x" * length)
        for password in ("x" * 16_256, "  a \" '\\ b ", "pä", "abc\0def", "two\r\nlines"):
            assert wire.call("CONFIG", "SET", "requirepass", password) == b"OK"
            with server.connect() as other:
                assert other.call("AUTH", "default", password) == b"OK"
                assert other.call("RESET") == b"RESET"
                assert b"server" in other.call("HELLO", 2, "AUTH", "default", password)
    assert "preauth-limit" in refusal("--requirepass", "x" * 1000, "--preauth-limit", "1kb")


def test_what_redis_has_and_duramen_has_not_is_named(tmp_path):
    """A redis.conf was `not TOML`, and for volatile-lru allkeys-lru was proposed, which does something else."""
    conf = tmp_path / "redis.conf"
    conf.write_text("# of an earlier server\nport 6379\nappendfsync everysec\n")
    said = refusal("--config", conf)
    assert "redis.conf:2: this looks like a line of a redis.conf" in said and "port = 6379" in said, said
    conf.write_text('port = 6379\nappendfsync = "everysec"\n')
    assert "for everysec set `level` to buffered" in refusal("--config", conf)
    said = refusal("--maxmemory-policy", "volatile-lru")
    assert "evicts keys with and without an expiry alike" in said and "similar value" not in said, said
    assert "similar value" in refusal("--maxmemory-policy", "allkeys-lr")
    conf.write_text("frobnicate = 1\n")
    assert "no setting has a similar name" in refusal("--config", conf)
