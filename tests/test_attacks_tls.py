"""Attacks on the port with TLS by openssl and by half a handshake: downgrades, early data, floods."""

import socket
import ssl
import subprocess
import time

import pytest

import harness
import provide
from test_tls import options

pytestmark = pytest.mark.duramen

CLIENTS = 1000


@pytest.fixture(scope="module")
def served(tmp_path_factory, certs):
    """A server for 2,000 clients, and its port with TLS."""
    port = harness.free_port()
    server = harness.Server(tmp_path_factory.mktemp("tls"), *options(certs, port, "--maxclients", 2 * CLIENTS), threads=2)
    server.port = harness.free_port()
    with server:
        yield server, port


@pytest.fixture
def port(served):
    return served[1]


@pytest.fixture
def plain(served):
    return served[0]


def said(certs, port, *more, sends=b"PING\r\nQUIT\r\n"):
    """What openssl prints that connects so."""
    command = [
        *(provide.program("openssl"), "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", certs / "ca.crt", "-verify_return_error"),
        *("-cert", certs / "alice.crt", "-key", certs / "alice.key", *more),
    ]
    done = subprocess.run(command, input=sends, capture_output=True, timeout=harness.PATIENCE_S, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize(
    "how",
    [
        "-tls1 -cipher ALL:@SECLEVEL=0",
        "-tls1_1 -cipher ALL:@SECLEVEL=0",
        "-tls1_2 -cipher NULL:aNULL:@SECLEVEL=0",
        "-tls1_2 -cipher AES128-SHA:AES256-SHA:AES128-GCM-SHA256",
    ],
)
def test_weak_versions_and_suites(certs, port, how):
    answer = said(certs, port, "-ign_eof", *how.split())
    assert "alert handshake failure" in answer and "PONG" not in answer, answer


def test_a_session_is_not_renegotiated(certs, port):
    process = subprocess.Popen(
        [provide.program("openssl"), "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", certs / "ca.crt", "-tls1_2"]
        + ["-cert", certs / "alice.crt", "-key", certs / "alice.key"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        process.stdin.write(b"R\n")  # its command to renegotiate
        process.stdin.flush()
        answer = process.stdout.read()  # it ends by itself
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    assert b"no renegotiation" in answer, answer


def test_early_data_runs_nothing(certs, plain, port, tmp_path):
    """An attacker can repeat early data."""
    early, session = tmp_path / "early", tmp_path / "session"
    early.write_bytes(b"SET early 1\r\n")
    said(certs, port, "-ign_eof", "-tls1_3", "-sess_out", session)
    answer = said(certs, port, "-ign_eof", "-tls1_3", "-sess_in", session, "-early_data", early)
    assert "Reused, TLS" in answer and "Early data was not sent" in answer, answer
    with plain.connect() as wire:
        assert wire.call("EXISTS", "early") == 0


def test_tls_at_the_plain_port(certs, plain):
    with socket.create_connection(("127.0.0.1", plain.port), timeout=harness.PATIENCE_S) as stream, pytest.raises(ssl.SSLError):
        ssl.create_default_context(cafile=certs / "ca.crt").wrap_socket(stream, server_hostname="localhost")


@pytest.mark.full
def test_handshakes_that_never_end(certs, plain, port):
    """They hold up nobody, and are closed; also one that sends a byte now and then."""
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    sides = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(*sides, server_hostname="localhost").do_handshake()
    hello = sides[1].read()
    before = plain.resident_bytes()
    begun = time.monotonic()
    halves = [socket.create_connection(("127.0.0.1", port), timeout=harness.PATIENCE_S) for _ in range(CLIENTS)]
    for n, half in enumerate(halves):
        half.sendall((b"", hello[:7], hello)[n % 3])
    with plain.connect() as wire:
        slowest = 0
        for _ in range(200):
            watch = harness.Stopwatch(plain)
            wire.call("PING")
            slowest = max(slowest, watch.seconds())
        assert slowest < 1, slowest
        assert "PONG" in said(certs, port, "-ign_eof")
        assert plain.resident_bytes() - before < CLIENTS * 40_000
        drip, at = halves[1], 7
        while b"connected_clients:1\r" not in wire.call("INFO", "clients"):
            assert time.monotonic() - begun < harness.PATIENCE_S
            try:
                drip.sendall(hello[at : at + 1])
            except ConnectionError:
                pass
            at += 1
            time.sleep(0.5)
    for half in halves:
        half.close()


def test_a_client_that_ends_keeps_no_place_in_a_queue(plain, certs, port):
    """It had unsent replies, waited for BLPOP, and sent close_notify behind another request: it was woken
    for each element in the place of those that waited behind it."""
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.load_cert_chain(certs / "alice.crt", certs / "alice.key")
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(harness.PATIENCE_S)
    peer.connect(("127.0.0.1", port))
    sides = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream = context.wrap_bio(*sides, server_hostname="localhost")

    def send():
        peer.sendall(sides[1].read())

    while True:
        try:
            stream.do_handshake()
            send()
            break
        except ssl.SSLWantReadError:
            send()
            sides[0].write(peer.recv(65536))

    with plain.connect() as wire, plain.connect() as other, peer:
        wire.call("SET", "big", "x" * 300_000)
        stream.write(harness.encode("CLIENT", "SETNAME", "ends"))

        def fields():
            lines = wire.call("CLIENT", "LIST").decode().splitlines()
            return next((line for line in lines if " name=ends " in line), "")

        def is_behind():
            if " obl=0 " in fields() or not fields():
                stream.write(harness.encode("GET", "big"))
                send()
                time.sleep(0.05)
            return fields() and " obl=0 " not in fields()

        harness.wait_until(is_behind, "it has unsent replies")
        stream.write(harness.encode("BLPOP", "queue", "0"))
        send()
        harness.wait_until(lambda: "cmd=blpop" in fields() and " flags=b " in fields(), "it waits")
        stream.write(harness.encode("PING"))
        try:
            stream.unwrap()
        except ssl.SSLWantReadError:
            send()
        harness.wait_until(lambda: " flags=b " not in fields(), "its end is noticed")
        other.send(harness.encode("BLPOP", "queue", "0"))
        harness.wait_until(lambda: b"blocked_clients:1\r" in wire.call("INFO", "clients"), "the other waits")
        wire.call("RPUSH", "queue", "one")
        assert other.reply() == [b"queue", b"one"]
        wire.call("DEL", "big")
