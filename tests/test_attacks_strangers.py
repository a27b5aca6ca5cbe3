"""Attacks by those who have stolen a part of what a peer needs, or nothing: at the native ports of
a cluster, and by what a server shows."""

import base64
import contextlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import threading

import pytest

import harness
import native
import test_member

pytestmark = pytest.mark.duramen

TOKEN = b"the token that was stolen"
ROLES = (native.CLIENT, native.SERVER, native.COORDINATOR, native.REPLICA)


class Guarded:
    """A coordinator and a member with a token, and with `certs` with TLS too."""

    def __init__(self, folder, certs=None):
        self.token = folder / "token"
        self.token.write_bytes(TOKEN + b"\n")
        self.token.chmod(0o600)
        self.files = tls_files(certs) if certs else ()
        proof = ("--cluster-token-file", self.token, *self.files)

        class Coordinator(test_member.Coordinator):
            def command(self):
                return [*super().command(), *map(str, proof)]

        self.coordinator = Coordinator(folder, replicas=1).start()
        more = (*proof, *(("--tls-cluster=yes",) if certs else ()))
        self.member = test_member.Member(folder, 1, self.coordinator.address)
        self.member.arguments += map(str, more)
        self.member.start()
        self.ports = (self.coordinator.port, self.member.native_port)

    def status(self, *proof, address=None):
        """Exit code and message of `duramen status`."""
        command = [harness.BINARY, "status", "--coordinator", address or self.coordinator.address, *map(str, proof)]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=harness.environment({}), timeout=60
        )
        return done.returncode, done.stderr

    def end(self):
        self.member.kill()
        self.coordinator.kill()


def tls_files(folder):
    names = {"tls-cert-file": "server.crt", "tls-key-file": "server.key", "tls-ca-cert-file": "ca.crt"}
    return tuple(word for setting, name in names.items() for word in (f"--{setting}", folder / name))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    made = Guarded(tmp_path_factory.mktemp("plain"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def secured(tmp_path_factory, certs):
    made = Guarded(tmp_path_factory.mktemp("secured"), certs)
    yield made
    made.end()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=harness.PATIENCE_S)


def test_without_the_token_nobody_enters_in_any_role(plain):
    for port in plain.ports:
        for role in ROLES:
            for token in (b"", b"x", TOKEN + b"x", TOKEN[:-1]):
                with connect(port) as peer, pytest.raises(native.RefusedError, match="token is wrong|ended"):
                    native.shake(peer, role, cluster=b"t", token=token)
            with connect(port) as peer:
                native.shake(peer, role, cluster=b"t", token=TOKEN)
    code, words = plain.status()
    assert code == 3 and "token" in words, words


def test_a_recorded_session_opens_nothing(plain):
    recorded = bytearray()

    def forward(listener):
        stream, _ = listener.accept()
        with stream, connect(plain.coordinator.port) as onward:
            answers = threading.Thread(target=pump, args=(onward, stream, bytearray()))
            answers.start()
            pump(stream, onward, recorded)
            answers.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=forward, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert plain.status("--cluster-token-file", plain.token, address=address)[0] == 0
        thread.join()
    assert len(recorded) > native.OPENING_BYTES and TOKEN not in recorded
    with connect(plain.coordinator.port) as peer:
        peer.sendall(recorded)
        answer = bytearray()
        pump(peer, None, answer)
    assert b"not permitted" in answer and len(answer) < 300, answer


def pump(source, to, kept):
    """Forwards all bytes and keeps them."""
    try:
        while piece := source.recv(1 << 16):
            kept += piece
            if to:
                to.sendall(piece)
        if to:
            to.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.full
def test_a_token_without_a_certificate_opens_nothing(secured):
    for port in secured.ports:
        for role in ROLES:
            with connect(port) as peer, pytest.raises(native.RefusedError, match="requires TLS"):
                native.shake(peer, role, cluster=b"t", token=TOKEN)
    code, words = secured.status("--cluster-token-file", secured.token)
    assert code == 4 and "certificates" in words, words
    assert secured.status("--cluster-token-file", secured.token, *secured.files)[0] == 0


def test_a_certificate_without_the_token_or_of_others_opens_nothing(secured, certs, tmp_path):
    harness.cert("init", tmp_path / "others")
    code, words = secured.status(*secured.files)
    assert code == 3 and "token" in words, words
    for port in secured.ports:
        for own, why in ((None, ssl.SSLError), (tmp_path / "others", ssl.SSLError), (certs, native.RefusedError)):
            context = ssl.create_default_context(cafile=certs / "ca.crt")
            if own:
                context.load_cert_chain(own / "server.crt", own / "server.key")
            with context.wrap_socket(connect(port), server_hostname="localhost") as stream, pytest.raises(why):
                # With the certificate this is a right proof, but of no TLS connection.
                native.shake(stream, native.SERVER, cluster=b"t", token=TOKEN)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match="(?i)version"):
            context.wrap_socket(connect(port), server_hostname="localhost")


@pytest.mark.full
def test_half_native_handshakes_keep_nobody_out(plain):
    held = lambda: len(os.listdir(f"/proc/{plain.coordinator.process.pid}/fd"))  # noqa: E731
    before = held()
    # Python's select() knows descriptors up to 1023.
    halves = [connect(plain.coordinator.port) for _ in range(600)]
    for half in halves:
        half.sendall(native.opening(native.CLIENT))
    assert plain.status("--cluster-token-file", plain.token)[0] == 0
    harness.wait_until(lambda: held() < before + 100, "they are closed")
    for half in halves:
        half.close()


def shown(server, admin):
    """Everything that a server tells of itself."""
    everything = [
        *(("INFO", "everything"), ("CONFIG", "GET", "*"), ("CLIENT", "LIST"), ("SLOWLOG", "GET", 1000)),
        *(("ACL", "LOG", 1000), ("ACL", "LIST"), ("ACL", "GETUSER", "eve"), ("MEMORY", "DOCTOR")),
    ]
    texts = {" ".join(map(str, request)): repr(admin.call(*request)) for request in everything}
    process = f"/proc/{server.process.pid}"
    for name in ("cmdline", "environ"):
        with open(f"{process}/{name}") as file:
            texts[name] = file.read()
    return texts


def test_no_place_shows_a_secret(start, tmp_path):
    hidden = [f"hidden-{n}-" + os.urandom(8).hex() for n in range(9)]
    default, setting, made, wrong, typo, queued, inline, page, script = hidden
    config = tmp_path / "duramen.toml"
    config.write_text(f'requirepass = "{default}"\nusers = "user eve on >{setting} ~* +@all"\n')
    config.chmod(0o600)
    every = "auth,admin,write,read,connection"
    logs = ("--audit-log", tmp_path / "audit", "--audit-log-classes", every, "--audit-log-keys", "plain")
    server = start("--config", config, "--log-level", "trace", "--slowlog-log-slower-than", 0, *logs)
    with server.connect() as admin, server.connect() as wire, server.connect() as monitor:
        for one in (admin, wire, monitor):
            assert one.call("AUTH", default) == b"OK"
        monitor.call("MONITOR")
        replies = wire.pipeline(
            [
                *(("AUTH", wrong), ("AUTH", "eve", wrong), ("HELLO", 3, "AUTH", "eve", wrong), ("AUTH", "a", "b", typo)),
                *(("HELLO", 9, "AUTH", "eve", wrong), ("CONFIG", "SET", "requirepas", typo), ("AUTH", "eve", setting)),
                *(("ACL", "SETUSER", "bob", "on", f">{made}"), ("ACL", "SETUSER", "bob", f"<{wrong}", f">{made}", "nonsense")),
                *(("ACL", "DRYRUN", "bob", "AUTH", wrong), ("ACL", "DRYRUN", "bob", "CONFIG", "SET", "requirepass", wrong)),
                *(("MULTI",), ("AUTH", queued), ("ACL", "SETUSER", "bob", f">{queued}"), ("EXEC",)),
                ("EVAL", "return redis.pcall(ARGV[1], ARGV[2])", 0, "AUTH", "x"),
            ]
        )
        wire.send(f"AUTH {inline}\r\nAUTH '{inline}\r\n".encode())
        replies += [wire.reply_or_error(), wire.reply_or_error()]
        login = base64.b64encode(f"eve:{page}".encode()).decode()
        pages = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=harness.PATIENCE_S)
        for path in ("/metrics", "/none", f"/metrics?password={script}"):
            pages.request("GET", path, headers={"Authorization": f"Basic {login}"})
            replies.append(pages.getresponse().read())
        texts = shown(server, admin)
        # The one thread of the server shows commands in their order. `wire` is closed: its last
        # request was none.
        assert admin.call("ECHO", "the last of all") == b"the last of all"
        with contextlib.suppress(harness.Closed):
            while b"the last of all" not in monitor.received:
                monitor.more()
    texts["replies"] = repr([str(reply) for reply in replies])
    texts["MONITOR"] = repr(bytes(monitor.received))
    assert "(redacted)" in texts["MONITOR"]
    server.process.send_signal(signal.SIGABRT)
    server.end()
    texts["audit log"] = (tmp_path / "audit").read_text()
    texts["log with the last words"] = server.log()
    found = [(place, hidden.index(secret)) for place, text in texts.items() for secret in [*hidden, login] if secret in text]
    assert found == []


@pytest.mark.parametrize("setting", [("--requirepass", "x"), ("--users", "user eve on >x ~* +@all"), ()])
def test_a_cluster_with_users_and_without_a_token_is_warned_of(tmp_path, setting):
    """Its native ports let everybody act as a member."""
    member = test_member.Member(tmp_path, 1, "127.0.0.1:1")
    member.arguments += setting
    with open(member.log_path, "ab") as log:
        member.process = subprocess.Popen(member.command(), stdout=subprocess.PIPE, stderr=log, env=harness.environment({}))
    try:
        harness.wait_until(lambda: "goes on trying" in member.log(), "it has begun")
        assert ("Set cluster-token-file" in member.log()) == bool(setting)
    finally:
        member.kill()
