"""TLS with the programs that people use: openssl, redis-cli, redis-py, a scraper."""

import http.client
import json
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
import redis

import harness
import provide
from harness import cert

pytestmark = pytest.mark.duramen


def options(certs, port, *more):
    return (
        *("--tls-port", port, "--tls-ca-cert-file", certs / "ca.crt"),
        *("--tls-cert-file", certs / "server.crt", "--tls-key-file", certs / "server.key"),
        *more,
    )


class Encrypted:
    def __init__(self, server, certs, port):
        self.server, self.certs, self.port = server, certs, port

    def context(self, name="alice"):
        context = ssl.create_default_context(cafile=self.certs / "ca.crt")
        if name:
            context.load_cert_chain(self.certs / f"{name}.crt", self.certs / f"{name}.key")
        return context

    def connect(self, name="alice", context=None):
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=harness.PATIENCE_S)
        return (context or self.context(name)).wrap_socket(plain, server_hostname="localhost")

    def redis(self, **options):
        return redis.Redis(
            port=self.port,
            ssl=True,
            ssl_ca_certs=str(self.certs / "ca.crt"),
            ssl_certfile=str(self.certs / "alice.crt"),
            ssl_keyfile=str(self.certs / "alice.key"),
            socket_timeout=harness.PATIENCE_S,
            **options,
        )

    def serial(self):
        """The serial number of the certificate that the server shows now."""
        with self.connect() as stream:
            return stream.getpeercert()["serialNumber"]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory, certs):
    """A server with a plain port and one with TLS, which requires certificates."""
    port = harness.free_port()
    server = harness.Server(tmp_path_factory.mktemp("tls"), *options(certs, port), threads=2)
    server.port = harness.free_port()  # `port 0` would turn it off
    with server:
        yield Encrypted(server, certs, port)


@pytest.fixture
def begin(tmp_path):
    """Starts servers that have a plain port beside the one with TLS; they end with the test."""
    running = []

    def begin_one(*arguments):
        server = harness.Server(tmp_path, *arguments)
        server.port = harness.free_port()
        running.append(server)
        return server.start()

    yield begin_one
    for server in running:
        server.kill()


def own_copy(certs, tmp_path):
    """Certificates that a test may replace."""
    folder = tmp_path / "certs"
    shutil.copytree(certs, folder)
    return folder


def test_redis_cli_over_tls(encrypted):
    cli = provide.program("redis-cli")
    certs = encrypted.certs
    arguments = [cli, "-p", str(encrypted.port), "--tls", "--cacert", certs / "ca.crt"]
    mine = [*arguments, "--cert", certs / "alice.crt", "--key", certs / "alice.key"]
    run = lambda command: subprocess.run(command, capture_output=True, text=True, timeout=harness.PATIENCE_S)  # noqa: E731
    assert run([*mine, "SET", "greeting", "hello"]).stdout == "OK\n"
    assert run([*mine, "GET", "greeting"]).stdout == "hello\n"
    refused = run([*arguments, "PING"])
    assert refused.returncode != 0 and "PONG" not in refused.stdout, refused


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_talks_and_continues_a_session(encrypted, tmp_path, version):
    certs = encrypted.certs
    command = [
        *(provide.program("openssl"), "s_client", "-connect", f"127.0.0.1:{encrypted.port}", version, "-CAfile", certs / "ca.crt"),
        *("-cert", certs / "alice.crt", "-key", certs / "alice.key", "-verify_return_error", "-ign_eof"),
    ]
    run = lambda *more: subprocess.run(  # noqa: E731
        [*command, *more], input=b"PING\r\nQUIT\r\n", capture_output=True, timeout=harness.PATIENCE_S
    ).stdout
    first = run("-sess_out", tmp_path / "session")
    assert b"+PONG\r\n+OK\r\n" in first and b"Verify return code: 0 (ok)" in first, first
    again = run("-sess_in", tmp_path / "session")
    assert b"+PONG\r\n+OK\r\n" in again and b"Reused, TLS" in again, again


def test_old_versions_are_refused(encrypted):
    context = encrypted.context()
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        encrypted.connect(context=context)


def test_redis_py_over_tls(encrypted):
    client = encrypted.redis()
    value = bytes(range(256)) * 4096
    assert client.set("large", value)
    assert client.get("large") == value
    pipeline = client.pipeline(transaction=False)
    for n in range(5_000):
        pipeline.set(f"key{n}", n)
    for n in range(5_000):
        pipeline.get(f"key{n}")
    replies = pipeline.execute()
    assert replies[5_000:] == [b"%d" % n for n in range(5_000)]
    info = client.info()
    assert int(info["duramen_tls_certificate_days_left"]) >= 395


def test_clients_in_many_threads(encrypted):
    def work(number):
        client = encrypted.redis()
        for n in range(200):
            client.set(f"own{number}", n)
            assert client.get(f"own{number}") == b"%d" % n
            if n % 50 == 0:
                client.connection_pool.disconnect()

    harness.in_threads(8, work)


@pytest.mark.full
def test_an_idle_client_is_served_later(encrypted):
    with encrypted.connect() as idle:
        time.sleep(3)
        idle.sendall(b"PING\r\n")
        assert idle.recv(100) == b"+PONG\r\n"


def test_plain_clients_are_told(encrypted):
    with harness.Wire(encrypted.port) as wire:
        wire.send(b"PING\r\n")
        with pytest.raises(harness.ErrorReply, match="this port speaks TLS"):
            wire.reply()
    with encrypted.connect() as stream:
        stream.sendall(b"PING\r\n")
        assert stream.recv(100) == b"+PONG\r\n"


def test_port_0_turns_plain_off(certs, tmp_path):
    port = harness.free_port()
    process = subprocess.Popen(
        [harness.BINARY, "serve", "--port", "0", "--admin=no", "--level", "memory", "--memory", "64mb",
         *map(str, options(certs, port))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=harness.environment({}),
    )
    try:
        ready = process.stdout.readline().decode().split()
        assert ready == ["ready", "resp=-", "native=-", "admin=-", f"tls=127.0.0.1:{port}"]
        assert Encrypted(None, certs, port).redis().ping()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(harness.PATIENCE_S) == 0
        process.stdout.close()


@pytest.mark.full
def test_certificates_are_read_again_by_signal_and_by_themselves(begin, certs, tmp_path):
    own = own_copy(certs, tmp_path)
    port = harness.free_port()
    server = begin(*options(own, port))
    encrypted = Encrypted(server, own, port)
    first = encrypted.serial()
    ended, failed, served = threading.Event(), [], [0]

    def work():
        lasting = encrypted.redis()
        while not ended.is_set():
            try:
                lasting.ping()
                encrypted.redis().ping()
                served[0] += 1
            except Exception as error:  # noqa: BLE001 - the test shows it
                failed.append(error)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        cert("rotate", "server", "--dir", own)
        server.process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: encrypted.serial() != first, "the signal is followed")
        second = encrypted.serial()
        cert("rotate", "server", "--dir", own)
        harness.wait_until(lambda: encrypted.serial() != second, "the files are looked at")
        third = encrypted.serial()
        (own / "server.crt").write_text("nothing")
        server.process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: "stay as they are" in server.log(), "the log says so")
        assert encrypted.serial() == third
    finally:
        ended.set()
        for worker in workers:
            worker.join()
    assert not failed and served[0] > 10, (failed, served)


def test_certificates_are_changed_by_config_set(begin, certs, tmp_path):
    own = own_copy(certs, tmp_path)
    port = harness.free_port()
    server = begin(*options(own, port))
    encrypted = Encrypted(server, own, port)
    first = encrypted.serial()
    cert("issue", "second", "--dir", own, "--san", "localhost")
    with server.connect() as wire:
        with pytest.raises(harness.ErrorReply, match="does not belong to the certificate"):
            wire.call("CONFIG", "SET", "tls-cert-file", own / "second.crt")
        assert encrypted.serial() == first
        wire.call("CONFIG", "SET", "tls-cert-file", own / "second.crt", "tls-key-file", own / "second.key")
        assert encrypted.serial() != first
        assert wire.call("CONFIG", "GET", "tls-cert-file")[1] == str(own / "second.crt").encode()
        wire.call("CONFIG", "SET", "tls-auth-clients", "no")
    with encrypted.connect(name=None) as stream:
        stream.sendall(b"PING\r\n")
        assert stream.recv(100) == b"+PONG\r\n"


def test_admin_http_over_tls(begin, certs):
    server = begin(*options(certs, harness.free_port(), "--admin-tls", "yes"))
    encrypted = Encrypted(server, certs, server.admin_port)
    url = f"https://localhost:{server.admin_port}"
    page = urllib.request.urlopen(f"{url}/metrics", context=encrypted.context(), timeout=10).read().decode()
    left = [line for line in page.splitlines() if line.startswith("duramen_tls_certificate_left_seconds ")]
    assert float(left[0].split()[1]) > 395 * 86_400
    # Probes have no certificate: a server with TLS alone never got ready in Kubernetes.
    for page in ("livez", "readyz"):
        assert urllib.request.urlopen(f"{url}/{page}", context=encrypted.context(None), timeout=10).status == 200
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{url}/metrics", context=encrypted.context(None), timeout=10)
    with server.connect() as wire:
        wire.call("CONFIG", "SET", "tls-auth-clients", "optional")
    assert urllib.request.urlopen(f"{url}/metrics", context=encrypted.context(None), timeout=10).status == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(f"http://localhost:{server.admin_port}/livez", timeout=10).read()
    assert urllib.request.urlopen(f"{url}/livez", context=encrypted.context(), timeout=10).read() == b"ok\n"


def refusal(folder, *arguments, port=0):
    """The text with which `serve` refuses to start."""
    serve = ("serve", "--port", port, "--admin-port", 0, "--level", "memory")
    return harness.duramen(*serve, *arguments, code=2, folder=folder).stderr


def test_what_does_not_fit_is_refused_with_a_way_out(certs, tmp_path):
    port = harness.free_port()
    text = refusal(tmp_path, "--tls-port", port)
    assert "duramen cert init" in text, text
    swapped = options(certs, port, "--tls-key-file", certs / "alice.key")
    swapped = [argument for n, argument in enumerate(swapped) if n not in (6, 7)]
    text = refusal(tmp_path, *swapped)
    assert "does not belong to the certificate" in text and "alice.key" in text, text
    text = refusal(tmp_path, *options(certs, port, "--tls-protocols", "TLSv1.1"))
    assert "tls-protocols" in text and "TLSv1.2" in text, text
    text = refusal(tmp_path, "--tls-key-file-pass", "x")
    assert "openssl pkey" in text, text
    text = refusal(tmp_path, "--bind", "0.0.0.0")
    assert "not encrypted" in text and "--insecure-bind" in text and "--tls-port" in text, text
    both = options(certs, port, "--tls-auth-clients", "no")
    text = refusal(tmp_path, "--bind", "0.0.0.0", *both, port=harness.free_port())
    assert "not encrypted" in text, text  # the plain port is on
    text = refusal(tmp_path, "--admin-bind", "0.0.0.0")
    assert "admin HTTP" in text and "--tls-cert-file" in text, text


def test_config_check_reads_the_certificates(certs, tmp_path):
    def check(key):
        (tmp_path / "duramen.toml").write_text(
            f'tls-port = 6380\ntls-cert-file = "{certs}/server.crt"\ntls-key-file = "{certs}/{key}.key"\n'
            f'tls-ca-cert-file = "{certs}/ca.crt"\n'
        )
        return harness.duramen("config", "check", folder=tmp_path)

    assert check("server").returncode == 0
    wrong = check("alice")
    assert wrong.returncode == 2 and "alice.key does not belong" in wrong.stderr, wrong


def test_an_open_address_needs_proof_from_clients(certs, tmp_path):
    port = harness.free_port()
    open_tls = [harness.BINARY, "serve", "--port", "0", "--admin=no", "--level", "memory", "--memory", "64mb",
                *("--bind", "0.0.0.0"), *map(str, options(certs, port))]
    done = subprocess.run([*open_tls, "--tls-auth-clients", "no"], capture_output=True, text=True,
                          env=harness.environment({}), cwd=tmp_path, timeout=harness.PATIENCE_S)
    assert done.returncode == 2 and "--requirepass" in done.stderr, done
    process = subprocess.Popen(open_tls, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env=harness.environment({}), cwd=tmp_path)
    try:
        assert process.stdout.readline().startswith(b"ready ")
        assert Encrypted(None, certs, port).redis().ping()
    finally:
        process.terminate()
        process.wait(harness.PATIENCE_S)
        process.stdout.close()


def test_cert_commands(tmp_path):
    folder = tmp_path / "own"
    told = cert("init", folder, "--san", "db.example.org", "--days", 20)
    assert "db.example.org" in told and "--tls-ca-cert-file" in told, told
    assert oct((folder / "server.key").stat().st_mode & 0o777) == "0o600"
    assert oct((folder / "ca.key").stat().st_mode & 0o777) == "0o600"
    assert "is there already" in cert("init", folder, ok=False)
    made = json.loads(cert("issue", "bob", "--dir", folder, "--json"))
    assert made["certificate"]["subject"] == "CN=bob" and made["certificate"]["names"] == []
    shown = json.loads(cert("show", "--dir", folder, "--json"))
    assert [pathlib.Path(one["file"]).name for one in shown] == ["bob.crt", "ca.crt", "server.crt"]
    assert [one["is_authority"] for one in shown] == [False, True, False]
    assert re.search("(19|20) days left", cert("show", folder / "server.crt"))
    verified = subprocess.run([provide.program("openssl"), "verify", "-CAfile", folder / "ca.crt", folder / "bob.crt"], capture_output=True)
    assert verified.returncode == 0, verified
    renewed = json.loads(cert("rotate", "server", "--dir", folder, "--json"))
    assert "db.example.org" in renewed["certificate"]["names"]
    cert("rotate", "--authority", "--dir", folder)
    cert("issue", "carol", "--dir", folder)
    assert (folder / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 2
    for name in ("bob", "carol"):
        verified = subprocess.run([provide.program("openssl"), "verify", "-CAfile", folder / "ca.crt", folder / f"{name}.crt"], capture_output=True)
        assert verified.returncode == 0, (name, verified)
    # It looked at no certificate: whoever gave out the new ca.crt too early lost all connections.
    refused = cert("rotate", "--end-overlap", "--dir", folder, ok=False)
    assert "bob.crt" in refused and "server.crt" in refused and "carol.crt" not in refused, refused
    assert (folder / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 2
    cert("rotate", "server", "--dir", folder)
    (folder / "bob.crt").unlink()
    cert("rotate", "--end-overlap", "--dir", folder)
    assert "one authority only" in cert("rotate", "--end-overlap", "--dir", folder, ok=False)
    assert "cert init" in cert("issue", "dave", "--dir", tmp_path, ok=False)
    assert "cannot be the name" in cert("issue", "../x", "--dir", folder, ok=False)
