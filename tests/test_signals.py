"""Events that must not end a store: a log that cannot be written, signals, a closed terminal."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import time

import pytest

import harness
import provide

pytestmark = pytest.mark.duramen

HARMLESS = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGPIPE]


@contextlib.contextmanager
def serve(folder, *arguments, stderr, stdout=subprocess.DEVNULL, level="memory", **options):
    """A server whose output goes to the given places; returns the process and its port."""
    port = harness.free_port()
    command = [harness.BINARY, "serve", "--port", str(port), "--admin", "--admin-port", "0"]
    command += ["--level", level] if level else []
    command += ["--memory", "64mb", "--threads", "1", *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=harness.environment({}), **options
    )
    try:
        harness.wait_until(lambda: answers(port) or process.poll() is not None, "the server answers")
        yield process, port
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def answers(port):
    with contextlib.suppress(OSError, harness.Closed, harness.ErrorReply):
        with harness.Wire(port) as wire:
            return wire.call("PING") == b"PONG"
    return False


def ask(port, *words):
    with harness.Wire(port) as wire:
        return wire.call(*words)


def say_much(process, port):
    """Makes the server log lines, in the thread that serves clients and in others."""
    for _ in range(3):
        process.send_signal(signal.SIGUSR1)
        assert ask(port, "CONFIG", "REWRITE") == b"OK"
        process.send_signal(signal.SIGHUP)
        assert ask(port, "PING") == b"PONG"


def stopped(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(harness.PATIENCE_S)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "duramen.toml"
    path.write_text("maxclients = 100\n")
    return path


@pytest.mark.parametrize("which", ["stderr", "both"])
def test_a_full_file_system_under_the_log_ends_nothing(tmp_path, config, which):
    """The first line of the log that could not be written ended the server with SIGABRT."""
    with open("/dev/full", "wb") as full:
        stdout = full if which == "both" else subprocess.DEVNULL
        with serve(tmp_path, "--config", config, stderr=full, stdout=stdout) as (process, port):
            say_much(process, port)
            assert stopped(process) == 0


def test_a_log_whose_reader_went_away_ends_nothing(tmp_path, config):
    reader, writer = os.pipe()
    with serve(tmp_path, "--config", config, stderr=writer) as (process, port):
        os.close(writer)
        os.close(reader)
        say_much(process, port)
        assert stopped(process) == 0


def test_closed_standard_streams_end_nothing(tmp_path, config):
    def close():
        os.close(1)
        os.close(2)

    with serve(tmp_path, "--config", config, stderr=None, stdout=None, preexec_fn=close) as (process, port):
        say_much(process, port)
        assert stopped(process) == 0


@pytest.mark.full
def test_a_log_that_nobody_reads_holds_up_nobody(tmp_path, config):
    """An abandoned pager filled the pipe, and the next line of the log blocked its thread for ever.
    Now lines are lost instead, and the log reports their number as soon as it is read again."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with serve(tmp_path, "--config", config, stderr=writer) as (process, port):
        os.close(writer)
        with harness.Wire(port) as wire:
            for _ in range(3000):
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.001)
                assert wire.call("PING") == b"PONG"
        said = b""
        deadline = time.monotonic() + harness.PATIENCE_S
        while b"lines are lost" not in said and time.monotonic() < deadline:
            readable, _, _ = select.select([reader], [], [], 0.05)
            said += os.read(reader, 65536) if readable else b""
            if not readable:
                process.send_signal(signal.SIGUSR1)
        lost = re.search(rb"lines are lost.*lines\D*=\D*(\d+)", re.sub(rb"\x1b\[[0-9;]*m", b"", said))
        assert lost, said[-2000:]
        assert 0 < int(lost[1]) < 3000
        assert stopped(process) == 0
    os.close(reader)


@pytest.mark.parametrize("name", [one.name for one in HARMLESS])
def test_a_signal_that_asks_for_nothing_ends_no_store(tmp_path, name):
    """SIGHUP of a closed terminal or of logrotate, and SIGUSR1, SIGUSR2 and SIGQUIT, ended the
    server at once."""
    log = tmp_path / "log"
    with open(log, "wb") as stderr, serve(tmp_path, stderr=stderr) as (process, port):
        assert ask(port, "SET", "k", "v") == b"OK"
        process.send_signal(signal.Signals[name])
        if name != "SIGPIPE":  # which every Rust program ignores
            harness.wait_until(lambda: name in log.read_text(), "the signal is seen")
        assert ask(port, "GET", "k") == b"v"
        if name == "SIGQUIT":
            harness.wait_until(lambda: "reactor-0" in log.read_text() or "nobody waits" in log.read_text(), "who waits is told")
        assert stopped(process) == 0


def test_a_closed_terminal_ends_no_store(tmp_path):
    """The window was closed, or the connection to the machine broke: the server ended with it."""
    port = harness.free_port()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(
            harness.BINARY,
            [harness.BINARY, "serve", "--port", str(port), "--admin=no", "--level", "memory", "--memory", "64mb", "--threads", "1"],
        )
    try:
        harness.wait_until(lambda: answers(port), "the server answers")
        os.close(terminal)
        # It gets SIGHUP, and all its later writes fail.
        for _ in range(50):
            assert answers(port)
            time.sleep(0.01)
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_hup_reads_the_configuration_file_again(tmp_path, config):
    """Changes of the file count, at once or at the next start; a value of CONFIG SET stays if the
    file is unchanged in it; a mistake changes nothing."""
    log = tmp_path / "log"

    def setting(name):
        return ask(port, "CONFIG", "GET", name)[1]

    def reload(text, until):
        before = log.read_text()
        config.write_text(text)
        process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: until in log.read_text()[len(before) :], f"the log says {until!r}")

    config.write_text('maxclients = 100\ntimeout = 50\noutput-limit = "8mb"\n')
    with open(log, "wb") as stderr, serve(tmp_path, "--config", config, stderr=stderr) as (process, port):
        assert ask(port, "CONFIG", "SET", "timeout", "70") == b"OK"
        changed = 'maxclients = 200\ntimeout = 50\noutput-limit = "16mb"\noutput-pause = "4mb"\nlog-level = "debug"\nargs-limit = 5000\n'
        reload(changed, "next start only")
        assert [setting(name) for name in ("maxclients", "timeout", "output-pause")] == [b"200", b"70", b"4194304"]
        said = log.read_text()
        assert "settings read again" in said and "maxclients output-pause output-limit log-level" in said
        assert "args-limit" in said.split("next start only")[1].splitlines()[0] or "args-limit" in said
        assert setting("args-limit") == b"1048576"
        for mistake, until in [("maxclients = 0\n", "out of range"), ("maxclients = ", "not TOML"), ('bind = "0.0.0.0"\nmaxclients = 1\n', "refusing to serve")]:
            reload(mistake, until)
            assert setting("maxclients") == b"200"
        reload(changed.replace("50", "60"), "settings read again")
        assert setting("timeout") == b"60"
        config.unlink()
        process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: "cannot read" in log.read_text(), "a missing file is told of")
        assert setting("maxclients") == b"200"
        assert stopped(process) == 0


def level_of(port):
    return ask(port, "CONFIG", "GET", "level")[1].decode()


def test_hup_after_a_rewrite_changes_only_edited_settings(tmp_path, config):
    """The values that CONFIG REWRITE wrote counted as changes of the file: a later `CONFIG SET` was
    undone by logrotate's SIGHUP, and an edit back to the value before the rewrite was not seen."""
    config.write_text('level = "synced"\nmemory = "64mb"\nrequirepass = ""\n')
    with open(tmp_path / "log", "wb") as log, serve(tmp_path, "--config", config, stderr=log, level=None) as (process, port):

        def hup():
            times = (tmp_path / "log").read_text().count("settings read again")
            process.send_signal(signal.SIGHUP)
            harness.wait_until(
                lambda: (tmp_path / "log").read_text().count("settings read again") > times, "the settings are read"
            )

        assert ask(port, "CONFIG", "SET", "level", "buffered") == b"OK"
        assert ask(port, "CONFIG", "REWRITE") == b"OK"
        assert 'level = "buffered"' in config.read_text()
        assert ask(port, "CONFIG", "SET", "level", "synced") == b"OK"
        hup()
        assert level_of(port) == "synced"
        # A rewrite writes no secret, so the file's old password is no change either.
        assert ask(port, "CONFIG", "SET", "requirepass", "new", "level", "buffered") == b"OK"
        with harness.Wire(port) as wire:
            assert wire.pipeline([("AUTH", "new"), ("CONFIG", "REWRITE")]) == [b"OK"] * 2
        hup()
        with harness.Wire(port) as wire:
            assert wire.call("AUTH", "new") == b"OK"
            assert wire.call("CONFIG", "SET", "requirepass", "") == b"OK"
        config.write_text(config.read_text().replace('"buffered"', '"synced"'))
        hup()
        assert level_of(port) == "synced"


def test_a_full_pipe_as_standard_output_stops_no_stop(tmp_path):
    """The line `ready` blocked the main thread, and SIGTERM never ended the server."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        with serve(tmp_path, stderr=subprocess.DEVNULL, stdout=writer) as (process, _port):
            process.terminate()
            assert process.wait(20) == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_hup_removes_no_password_by_accident(tmp_path, config):
    """SIGHUP while the file read empty, because it was being written, its disk was full, or it was
    a pipe, removed the password of the running server."""
    log = tmp_path / "log"
    secret = 'requirepass = "s"\n'

    def reload(until):
        before = len(log.read_text())
        process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: until in log.read_text()[before:], f"the log says {until!r}")
        return answers(port)

    @contextlib.contextmanager
    def closed_server(path):
        log.write_bytes(b"")
        port = harness.free_port()
        with open(log, "wb") as stderr:
            process = subprocess.Popen(
                [harness.BINARY, "serve", "--config", path, "--port", str(port), "--admin=no", "--level", "memory", "--memory", "64mb"],
                cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=harness.environment({}),
            )
        try:
            assert process.stdout.readline().startswith(b"ready ")
            yield process, port
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    config.write_text(secret)
    with closed_server(config) as (process, port):
        assert not answers(port)
        config.write_text("")
        assert not reload("the file is empty")
        config.write_text("maxclients = 50\n")
        assert not reload("`requirepass` is no longer there")
        assert "changed=\"maxclients\"" in re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())
        config.write_text('requirepass = ""\n')
        assert reload("settings read again")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", f"printf '%s' '{secret}' > {pipe}"])
    with closed_server(pipe) as (process, port):
        writer.wait()
        assert not reload("not a regular file")


def test_a_stop_ends_a_start_that_waits_for_a_file(tmp_path):
    """The signals were taken before there was a thread that acts on them: a start that waited for the
    other end of a pipe could only be killed."""
    pipe = tmp_path / "duramen.toml"
    os.mkfifo(pipe)
    for name in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            [harness.BINARY, "serve", "--config", pipe], cwd=tmp_path, stderr=subprocess.DEVNULL, env=harness.environment({})
        )
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status")
            caught = lambda: int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16)
            harness.wait_until(lambda: caught() >> (name - 1) & 1, "the signal is taken")
            process.send_signal(name)
            assert process.wait(3) == 0
        finally:
            process.kill()
            process.wait()


def test_a_log_pipe_without_a_reader_blocks_nobody(tmp_path):
    """SIGHUP opened the pipe again and waited for a reader for ever, and with it every later stop:
    SIGTERM, a second one, and SHUTDOWN. A start waited in the same way."""
    pipe = tmp_path / "log.pipe"
    os.mkfifo(pipe)
    command = [harness.BINARY, "serve", "--level", "memory", "--log-file", pipe]
    done = subprocess.run(command, capture_output=True, text=True, env=harness.environment({}), check=False, timeout=harness.PATIENCE_S)
    assert done.returncode == 5 and "no process reads" in done.stderr, done
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with serve(tmp_path, "--log-file", pipe, stderr=subprocess.DEVNULL) as (process, port):
        os.close(reader)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)  # nothing tells that the log could not be opened
        assert ask(port, "PING") == b"PONG"
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: b"opened again" in (os.read(reader, 65536) if select.select([reader], [], [], 0)[0] else b""), "it goes on")
        os.close(reader)
        process.send_signal(signal.SIGHUP)
        assert stopped(process) == 0


def test_hup_opens_the_log_file_again(tmp_path):
    log, old = tmp_path / "duramen.log", tmp_path / "duramen.log.1"
    with serve(tmp_path, "--log-file", log, stderr=subprocess.PIPE) as (process, port):
        harness.wait_until(lambda: "serving" in log.read_text(), "the log has the first lines")
        log.rename(old)
        process.send_signal(signal.SIGUSR1)
        harness.wait_until(lambda: "SIGUSR1" in old.read_text(), "the renamed file is written to")
        process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: log.exists() and "opened again" in log.read_text(), "the log goes on in a new file")
        log.rename(tmp_path / "duramen.log.2")
        log.mkdir()
        process.send_signal(signal.SIGHUP)
        told = tmp_path / "duramen.log.2"
        harness.wait_until(lambda: "the log goes on in the file that is open" in told.read_text(), "a failure is told of")
        assert ask(port, "CONFIG", "GET", "logfile") == [b"logfile", str(log).encode()]
        assert stopped(process) == 0
        assert "stopped" in told.read_text()
        assert process.stderr.read() == b""


def test_a_log_file_that_cannot_be_opened_is_told_of(tmp_path):
    command = [harness.BINARY, "serve", "--level", "memory", "--log-file", tmp_path / "no" / "such.log"]
    done = subprocess.run(command, capture_output=True, text=True, env=harness.environment({}), check=False, timeout=harness.PATIENCE_S)
    assert done.returncode == 5 and "cannot open the log file" in done.stderr and "such.log" in done.stderr


def each_key_once(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice in a line of the log: {keys}"
    return dict(pairs)


def test_each_line_of_a_json_log_has_each_key_once(tmp_path, config):
    """The line `serving` had two keys `level`: its severity, and that of writes. Readers took one
    or the other."""
    log = tmp_path / "log"
    arguments = ("--config", config, "--log-format", "json", "--log-level", "debug", "--dir", tmp_path / "data")
    with open(log, "wb") as stderr, serve(tmp_path, *arguments, stderr=stderr) as (process, port):
        assert ask(port, "BGSAVE")
        say_much(process, port)
        for signal_number in HARMLESS:
            process.send_signal(signal_number)
        harness.wait_until(lambda: "snapshot is done" in log.read_text(), "the snapshot is told of")
        assert stopped(process) == 0
    lines = [json.loads(line, object_pairs_hook=each_key_once) for line in log.read_text().splitlines()]
    serving = next(line for line in lines if line["message"] == "serving")
    assert (serving["level"], serving["write_level"]) == ("INFO", "memory")


def coordinator(folder, stderr):
    port = harness.free_port()
    command = [harness.BINARY, "coordinator", "--listen", f"127.0.0.1:{port}", "--admin", "no", "--store", f"redb:{folder}/store"]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=harness.environment({}))
    ready = process.stdout.readline()
    assert ready.startswith(b"ready "), ready
    return process


def test_a_coordinator_outlives_signals_and_its_log(tmp_path):
    with open("/dev/full", "wb") as full:
        process = coordinator(tmp_path, full)
        try:
            for one in HARMLESS:
                process.send_signal(one)
            time.sleep(0.2)
            assert process.poll() is None
            assert stopped(process) == 0
        finally:
            process.kill()
            process.stdout.close()


def test_a_cluster_for_trying_outlives_signals_and_its_terminal(tmp_path):
    """`duramen up`: SIGHUP ended it, and with it all its servers."""
    command = [harness.BINARY, "up", "--servers", "2", "--replicas", "1", "--memory", "64mb", "--dir", str(tmp_path / "up"), *harness.CALM]
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full, env=harness.environment({}))
        try:
            ready = process.stdout.readline().decode()
            assert ready.startswith("ready "), ready
            port = harness.port_of(re.search(r"resp=([^, ]+)", ready)[1])
            for one in HARMLESS:
                process.send_signal(one)
            for number in range(2):
                log = tmp_path / f"up/server-{number}.log"
                harness.wait_until(lambda log=log: "SIGHUP" in log.read_text(), "each server is told to look again")
            assert answers(port) and process.poll() is None
            assert stopped(process) == 0
        finally:
            process.kill()
            process.stdout.close()


def test_a_tool_whose_reader_went_away_does_not_break_down(tmp_path):
    """`duramen fsck DIR | head -1` ended with SIGABRT and a panic."""
    with harness.Duramen(tmp_path, level=None, dir=tmp_path / "data", memory="64mb") as server:
        assert server.stop() == 0
    for stdout, wanted in [("pipe", 0), ("/dev/full", 2)]:
        reader, writer = os.pipe()
        os.close(reader)
        with open("/dev/full", "wb") as full:
            to = writer if stdout == "pipe" else full
            done = subprocess.run([harness.BINARY, "fsck", tmp_path / "data"], stdout=to, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writer)
        assert done.returncode == wanted, done.stderr
        assert "panicked" not in done.stderr


CA = """[ca]
default_ca = one
[one]
dir = .
database = index.txt
rand_serial = yes
new_certs_dir = .
default_md = sha256
policy = names
unique_subject = no
[names]
commonName = supplied
"""


@pytest.fixture(scope="module")
def expired(tmp_path_factory):
    """A folder with an authority, and its certificates `server` and `expired`."""
    folder = tmp_path_factory.mktemp("certs")

    def openssl(*words):
        subprocess.run([provide.program("openssl"), *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority", "-days", "9")
    (folder / "ca.cnf").write_text(CA)
    (folder / "index.txt").touch()
    (folder / "names.cnf").write_text("subjectAltName = IP:127.0.0.1\nextendedKeyUsage = serverAuth, clientAuth\n")
    for name, ends in (("server", "20991231235959Z"), ("expired", "20200102000000Z")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.key").chmod(0o600)
        words = ("-cert", "ca.crt", "-keyfile", "ca.key", "-extfile", "names.cnf", "-notext")
        openssl("ca", "-batch", "-config", "ca.cnf", *words, "-startdate", "20200101000000Z", "-enddate", ends, "-in", f"{name}.csr", "-out", f"{name}.crt")
    return folder


def waiting_coordinator(folder, *more):
    """A coordinator whose certificate has expired."""
    command = [harness.BINARY, "coordinator", "--listen", "127.0.0.1:0", "--admin", "no", *more]
    command += ["--log-file", folder / "log"]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=harness.environment({}))
    log = folder / "log"
    harness.wait_until(lambda: log.exists() and "waits until that has changed" in log.read_text(), "it waits")
    return process


@pytest.mark.parametrize("whose", ["its own", "of etcd"])
def test_a_coordinator_that_waits_for_a_certificate_outlives_signals(tmp_path, expired, whose):
    """SIGHUP, SIGUSR1 and SIGQUIT ended it, and SIGTERM did so with a signal. With an expired
    certificate for etcd it ended with code 2, after which no supervisor starts it again."""
    ca, certificate, key = (expired / name for name in ("ca.crt", "expired.crt", "expired.key"))
    own = ("--store", "redb:store", "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", ca)
    etcd = ("--etcd-cert-file", certificate, "--etcd-key-file", key, "--etcd-ca-file", ca)
    process = waiting_coordinator(tmp_path, *(own if whose == "its own" else ("--store", "etcd:https://127.0.0.1:1", *etcd)))
    try:
        for one in HARMLESS:
            process.send_signal(one)
        time.sleep(0.5)
        assert process.poll() is None
        assert stopped(process) == 0
    finally:
        process.kill()
        process.stdout.close()


@pytest.mark.parametrize(
    "words",
    [("--listen", "none.invalid:7400"), ("--admin", "none.invalid:8400"), ("--cluster-token-file", "none")],
    ids=lambda words: words[0],
)
def test_a_cause_that_may_pass_is_no_wrong_usage(tmp_path, words):
    """A coordinator ended with code 2, after which no supervisor starts it again."""
    given = {"--listen": "127.0.0.1:0", "--admin": "no", **dict([words])}
    command = [harness.BINARY, "coordinator", "--store", "redb:store", *[word for pair in given.items() for word in pair]]
    done = subprocess.run(command, capture_output=True, text=True, env=harness.environment({}), cwd=tmp_path, check=False, timeout=harness.PATIENCE_S)
    assert done.returncode == 5 and words[1] in done.stderr, done


def test_an_address_without_a_port_is_wrong_usage(tmp_path):
    command = [harness.BINARY, "coordinator", "--store", "redb:store", "--admin", "127.0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, env=harness.environment({}), cwd=tmp_path, check=False, timeout=harness.PATIENCE_S)
    assert done.returncode == 2 and "HOST:PORT" in done.stderr, done


def test_a_server_that_waits_for_a_certificate_reads_the_name_of_another(tmp_path, expired):
    """SIGHUP said that there was no configuration file, and the server waited for the old one."""
    config, log = tmp_path / "duramen.toml", tmp_path / "log"
    text = 'level = "memory"\nport = 0\nadmin-port = 0\ntls-port = {}\ntls-cert-file = "{}"\ntls-key-file = "{}"\ntls-ca-cert-file = "{}"\n'
    at = harness.free_port()

    def write(name):
        config.write_text(text.format(at, *(expired / file for file in (f"{name}.crt", f"{name}.key", "ca.crt"))))

    write("expired")
    command = [harness.BINARY, "serve", "--config", config, "--log-file", log]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=harness.environment({}))
    try:
        harness.wait_until(lambda: log.exists() and "waits until that has changed" in log.read_text(), "it waits")
        write("server")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline().startswith(b"ready "), log.read_text()
        assert stopped(process) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_a_second_signal_ends_a_cluster_for_trying(tmp_path):
    """Its second signal was ignored."""
    command = [harness.BINARY, "up", "--servers", "2", "--replicas", "1", "--memory", "64mb", "--dir", str(tmp_path / "up"), *harness.CALM]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=harness.environment({}))
    try:
        ready = process.stdout.readline().decode()
        pids = [int(pid) for pid in re.search(r"pids=(\S+)", ready)[1].split(",")]
        os.kill(pids[0], signal.SIGSTOP)  # it would not end for 15 s
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 6
    finally:
        process.kill()
        process.stdout.close()
