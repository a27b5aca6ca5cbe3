"""Users at every door of a cluster: native clients, commands of the program, admin HTTP of members
and of the coordinator; and users that a member does not understand."""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import struct
import subprocess
import time
import urllib.error
import urllib.request

import pytest
import redis

import harness
import native
import processes
from harness import wait_until
from histories import Workload
from processes import Cluster

pytestmark = pytest.mark.duramen

# A change reaches the other members within this time, on two shared cores.
SOON_S = 40
SECRET = "open-sesame"


def connect(member, user="root", password=SECRET):
    return processes.connect(member, user, password)


def set_users(cluster, *users):
    """Changes users as `root`."""
    with connect(cluster.members[0]) as root:
        for user in users:
            assert root.execute_command("ACL", "SETUSER", *user.split())


def duramen(cluster, *words, user=None, password=SECRET, env=()):
    """Runs a command; returns the finished process."""
    login = ["--user", user] if user else []
    variables = {"DURAMEN_PASSWORD": password} if user and password else {}
    coordinators = ",".join(cluster.coordinator_addresses())
    # A session of its own has no terminal.
    options = {"variables": {**variables, **dict(env)}, "start_new_session": True, "timeout": 120}
    return harness.duramen(*words, *login, "--coordinator", coordinators, **options)


@pytest.fixture(scope="module")
def cluster(home):
    """A cluster whose default user is off, with an administrator."""
    with Cluster(home, 3, replicas=2, settings=harness.CALM) as cluster:
        one = cluster.members[0]
        with connect(one, None, None) as first:
            assert first.execute_command("ACL", "SETUSER", "root", "on", f">{SECRET}", "~*", "&*", "+@all")
            assert first.execute_command("ACL", "SETUSER", "default", "off")
        wait_until(lambda: duramen(cluster, "status").returncode == 3, "the coordinator asks for users", patience_s=SOON_S)
        yield cluster


def outstanding(cluster, *more, **login):
    """Reads and writes of native clients on the keys `outstanding:*` of db0."""
    quick = ("--keys", 50, "--outstanding", "1,4", "--rounds", 1, "--seconds", 0.2)
    return duramen(cluster, "bench", "outstanding", *quick, *more, **login)


def test_native_clients_have_the_rights_of_their_users(cluster):
    set_users(
        cluster,
        f"app on >{SECRET} ~outstanding:* +get +set",
        f"reader on >{SECRET} %R~* +get",
        f"elsewhere on >{SECRET} ~* +@all table:x*",
    )
    wait_until(lambda: outstanding(cluster, user="app").returncode == 0, "all members know it", patience_s=30)
    for user, why in (("reader", "no right to run 'set'"), ("elsewhere", "no right to this table")):
        refused = outstanding(cluster, user=user)
        assert refused.returncode != 0 and why in refused.stderr, refused
    refused = outstanding(cluster)
    assert refused.returncode != 0 and "log in" in refused.stderr, refused
    refused = outstanding(cluster, user="app", password="guess")
    assert refused.returncode != 0 and "invalid username-password pair" in refused.stderr, refused


def test_changed_rights_hold_for_open_native_connections(cluster, place):
    set_users(cluster, f"histories on >{SECRET} ~* +@all")
    options = {"native_clients": 4, "resp_clients": 0, "user": "histories", "password": SECRET}
    logged_in = lambda: outstanding(cluster, user="histories").returncode == 0  # noqa: E731
    wait_until(logged_in, "all members know it", patience_s=30)
    clients = Workload(place, [], cluster.coordinator_addresses(), cluster=cluster.name, patience_ms=2_000, **options)
    with contextlib.closing(Ended(clients)):
        clients.begin("before", 1.0)
        said = clients.finish()
        assert said["native"]["done"] > 0 and "no right" not in json.dumps(said), said
        set_users(cluster, "histories -set")
        time.sleep(1)  # the other members follow
        clients.begin("after", 1.0)
        said = clients.answer()
        assert "no right to run 'set'" in json.dumps(said), said
        with connect(cluster.members[0]) as root:
            assert root.acl_deluser("histories") == 1
        wait_until(lambda: not named(cluster, "histories"), "its connections are closed", patience_s=SOON_S)


class Ended:
    def __init__(self, clients):
        self.close = clients.end


def named(cluster, user):
    """Connections of a user on all members."""
    found = []
    for member in cluster.members:
        with connect(member) as root:
            found += [client for client in root.client_list() if client["user"] == user]
    return found


def test_a_user_that_is_made_again_between_two_pushes_loses_its_connections(cluster):
    """The members see only the result: a user of the same name and password, with another id."""
    set_users(cluster, f"ann on >{SECRET} ~* +@all")
    member = cluster.members[1]
    wait_until(lambda: known(member, "ann"), "the member knows her", patience_s=SOON_S)
    with harness.Wire(member.port) as ann:
        assert ann.call("AUTH", "ann", SECRET) == b"OK" and ann.call("PING") == b"PONG"
        revision, rules = users_of(cluster)
        lines = rules.split(b"\n")
        at = next(n for n, line in enumerate(lines) if line.startswith(b"user ann "))
        assert lines[at - 1].startswith(b"#:"), lines[at - 1]
        lines[at - 1] = b"#:123abc"
        set_raw_users(cluster, revision + 1, b"\n".join(lines))
        wait_until(lambda: not alive(ann), "her connection ends", patience_s=SOON_S)
    assert known(member, "ann")


def known(member, user):
    try:
        with connect(member, user) as client:
            return client.ping()
    except redis.exceptions.NoPermissionError:
        return True  # it has logged in
    except redis.exceptions.AuthenticationError:
        return False


def alive(wire):
    try:
        return wire.call("PING")
    except (OSError, harness.Closed):
        return False


# The coordinator's messages, as postcard has them.
USERS, SET_USERS, ANSWER_USERS = 17, 18, 12
TO_COORDINATOR = 1


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def read_varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def ask(cluster, role, body):
    """One question to the coordinator, byte by byte; returns flags and body of the answer."""
    with socket.create_connection(("127.0.0.1", cluster.coordinators[0].port), timeout=30) as peer:
        native.shake(peer, role, cluster=cluster.name.encode())
        peer.sendall(native.frame(TO_COORDINATOR, body))
        head = native.receive(peer, 40)
        length, _, flags = struct.unpack_from("<IHH", head)
        return flags, native.receive(peer, length)


def read_users(body):
    kind, at = read_varint(body, 0)
    assert kind == ANSWER_USERS, body[:100]
    revision, at = read_varint(body, at)
    length, at = read_varint(body, at)
    return revision, body[at : at + length]


def users_of(cluster):
    _, body = ask(cluster, native.SERVER, varint(USERS))
    return read_users(body)


def set_raw_users(cluster, revision, rules):
    _, body = ask(cluster, native.SERVER, varint(SET_USERS) + varint(revision) + varint(len(rules)) + rules)
    assert read_users(body) == (revision, rules)


def test_clients_get_no_answers_that_are_for_members(cluster):
    flags, body = ask(cluster, native.CLIENT, varint(USERS))
    assert flags == native.ANSWER | native.ERROR and b"only members" in body, body
    revision, rules = users_of(cluster)
    attack = rules + b"user eve on nopass ~* +@all\n"
    flags, body = ask(cluster, native.CLIENT, varint(SET_USERS) + varint(revision + 1) + varint(len(attack)) + attack)
    assert flags == native.ANSWER | native.ERROR and b"only members" in body, body
    assert users_of(cluster) == (revision, rules)


def test_commands_that_ask_the_coordinator_have_users(cluster, place):
    set_users(cluster, f"watch on >{SECRET} +info", f"maker on >{SECRET} +info +duramen.table|create table:made*")
    wait_until(lambda: duramen(cluster, "status", user="maker").returncode == 0, "it knows them", patience_s=SOON_S)
    stranger = duramen(cluster, "status")
    assert stranger.returncode == 3 and "log in" in stranger.stderr and "--user" in stranger.stderr, stranger
    wrong = duramen(cluster, "status", user="watch", password="guess")
    assert wrong.returncode == 3 and "invalid username-password pair" in wrong.stderr, wrong
    asked = duramen(cluster, "status", user="watch", password=None)
    assert asked.returncode == 2 and "--password-file" in asked.stderr, asked
    (place / "secret").write_text(f"{SECRET}\nnot this line\n")
    by_file = duramen(cluster, "status", "--json", "--password-file", place / "secret", user="watch", password=None)
    assert by_file.returncode == 0 and len(json.loads(by_file.stdout)["servers"]) == 3, by_file
    by_variables = duramen(cluster, "status", env={"DURAMEN_USER": "watch", "DURAMEN_PASSWORD": SECRET}.items())
    assert by_variables.returncode == 0, by_variables
    server = json.loads(by_file.stdout)["servers"][0]["server"]
    for words in (("table", "create", "other"), ("table", "drop", "db0"), ("drain", server), ("crash", server)):
        refused = duramen(cluster, *words, user="watch")
        assert refused.returncode == 3 and "user watch has no right" in refused.stderr, (words, refused)
    assert duramen(cluster, "table", "create", "made1", user="maker").returncode == 0
    refused = duramen(cluster, "table", "create", "other", user="maker")
    assert refused.returncode == 3 and "duramen.table|create" in refused.stderr, refused
    assert duramen(cluster, "table", "drop", "made1", user="root").returncode == 0


def page(port, path, user=None, password=SECRET, context=None):
    """Status code and text of a page of admin HTTP."""
    scheme = "https" if context else "http"
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}{path}")
    if user:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_admin_http_of_members_has_the_users_of_the_cluster(cluster):
    set_users(cluster, f"scraper on >{SECRET} +info")
    for member in cluster.members:
        wait_until(lambda member=member: known(member, "scraper"), f"{member.name} knows it", patience_s=SOON_S)
        assert page(member.admin_port, "/cluster")[0] == 401
        code, text = page(member.admin_port, "/cluster", "scraper")
        assert code == 200 and json.loads(text)["cluster"] == cluster.name
        assert page(member.admin_port, "/readyz")[0] == 200


def test_a_member_that_does_not_understand_newer_users_says_so_and_keeps_the_old_ones(cluster):
    set_users(cluster, f"watch on >{SECRET} +info", f"old on >{SECRET} ~* +get")
    for member in cluster.members:
        wait_until(lambda member=member: known(member, "old"), f"{member.name} knows it", patience_s=SOON_S)
    revision, rules = users_of(cluster)
    newer = rules + b"user new on >secret ~* +a-command-of-tomorrow\n"
    newer = b"\n".join(line for line in newer.split(b"\n") if not line.startswith(b"user old "))
    set_raw_users(cluster, revision + 1, newer)

    def servers():
        done = duramen(cluster, "status", "--json", user="watch")
        return json.loads(done.stdout)["servers"] if done.returncode == 0 else []

    wait_until(lambda: servers() and all(one["users_fault"] for one in servers()), "all say so", patience_s=30)
    for one in servers():
        assert "Unknown command" in one["users_fault"] and one["users_revision"] == revision, one
    text = duramen(cluster, "status", user="watch").stdout
    assert f"does not understand those of revision {revision + 1}" in text, text
    assert all(known(member, "old") for member in cluster.members), "the old users are in force"
    # An administrator mends it: a member makes its change from users that it does not understand.
    set_raw_users(cluster, revision + 2, rules)
    mended = lambda: all(one["users_revision"] == revision + 2 and not one["users_fault"] for one in servers())  # noqa: E731
    wait_until(lambda: servers() and mended(), "all have confirmed", patience_s=30)


def test_the_audit_log_has_native_clients(place):
    log = place / "audit.jsonl"
    options = ("--audit-log", log, "--audit-log-classes", "auth,write", "--audit-log-keys", "plain")
    with Cluster(place, 2, replicas=1, settings=harness.CALM, options=options) as cluster:
        with connect(cluster.members[0], None, None) as first:
            assert first.execute_command("ACL", "SETUSER", "app", "on", f">{SECRET}", "~outstanding:1*", "+get", "+set")
        wait_until(lambda: all(known(member, "app") for member in cluster.members), "all know it", patience_s=SOON_S)
        refused = outstanding(cluster, user="app")
        assert "no right to this key" in refused.stderr, refused

        def lines():
            found = [json.loads(line) for line in log.read_text().splitlines()]
            return {(line["outcome"], line["user"], line["command"], (line.get("key") or "")[:13]) for line in found}

        expected = {("allowed", "app", "auth", ""), ("allowed", "app", "set", "outstanding:1"), ("denied", "app", "set", "outstanding:0")}
        wait_until(lambda: expected <= lines(), f"the audit log has {expected}, not {lines()}", patience_s=SOON_S)
        denied = [entry for member in cluster.members for entry in denials(member)]
        assert any(entry["reason"] == "key" and entry["context"] == "native" for entry in denied), denied


def denials(member):
    with connect(member, None, None) as client:
        return client.acl_log()


def test_many_users_delay_no_ping(place):
    """Ten thousand users took up to a second of the thread that answers pings."""
    with Cluster(place, 2, replicas=1, settings=harness.CALM) as cluster:
        one, two = cluster.members
        with connect(one, None, None) as first:
            assert first.execute_command("ACL", "SETUSER", "watch", "on", f">{SECRET}", "+info", "+ping")
        revision, rules = users_of(cluster)
        line = b"user u%06d on sanitize-payload ~a:* resetchannels -@all +@read +@write -@dangerous +ping\n"
        many = [line % number for number in range((1_000_000 - len(rules)) // len(line % 0))]
        assert len(many) > 8_000
        before = [json.loads(page(member.admin_port, "/cluster")[1])["slowest_round_us"] for member in cluster.members]
        begun, watches = time.monotonic(), [harness.Stopwatch(member) for member in cluster.members]
        set_raw_users(cluster, revision + 1, rules + b"".join(many))

        def has_them(member):
            with connect(member, None, None) as client:
                return int(client.info("cluster")["duramen_users_revision"]) == revision + 1

        for member in cluster.members:
            wait_until(lambda member=member: has_them(member), f"{member.name} has them", patience_s=60)
        took = time.monotonic() - begun
        after = [json.loads(page(member.admin_port, "/cluster")[1])["slowest_round_us"] for member in cluster.members]
        print(f"{len(many)} users in {took:.2f} s; slowest rounds {before} before, {after} after, in microseconds")
        # It needs the clock, because a round is of the clock. Other programs may lengthen it.
        most = [200_000 + watch.hindered_s() * 1e6 for watch in watches]
        assert all(late <= max(early, longest) for early, late, longest in zip(before, after, most)), (took, before, after, most)
        done = duramen(cluster, "status", "--json", user="watch")
        servers = json.loads(done.stdout)["servers"]
        assert [one["state"] for one in servers] == ["up", "up"], "none counted as crashed"


def test_the_coordinators_admin_http_has_users_and_tls(place):
    certs = place / "certs"
    done = subprocess.run([harness.BINARY, "cert", "init", certs], capture_output=True, timeout=60)
    assert done.returncode == 0, done
    files = ["--tls-cert-file", certs / "server.crt", "--tls-key-file", certs / "server.key", "--tls-ca-cert-file", certs / "ca.crt"]
    listen, admin = harness.free_port(), harness.free_port()
    coordinator = subprocess.Popen(
        [
            *(harness.BINARY, "coordinator", "--listen", f"127.0.0.1:{listen}", "--store", f"redb:{place}/store"),
            *("--admin", f"127.0.0.1:{admin}", "--admin-tls", "yes", "--replicas", "1"),
            *("--log-file", place / "coordinator.log", *files),
        ],
        stdout=subprocess.PIPE,
    )
    trusting = ssl.create_default_context(cafile=certs / "ca.crt")
    showing = ssl.create_default_context(cafile=certs / "ca.crt")
    showing.load_cert_chain(certs / "server.crt", certs / "server.key")
    try:
        assert coordinator.stdout.readline().startswith(b"ready ")
        with pytest.raises((OSError, http.client.HTTPException)):
            page(admin, "/livez")
        assert page(admin, "/livez", context=trusting)[0] == 200, "a probe needs no certificate"
        assert page(admin, "/metrics", context=trusting)[0] == 403, "without users, a certificate is needed"
        assert page(admin, "/metrics", context=showing)[0] == 200
        options = ("--coordinator", f"127.0.0.1:{listen}", "--native-port", "0", "--tls-cluster=yes", *files)
        member = harness.Duramen(place, *options, dir=place / "member", memory="64mb", level=None)
        with member:
            with redis.Redis(port=member.port) as first:
                assert first.execute_command("ACL", "SETUSER", "scraper", "on", f">{SECRET}", "+info")
                assert first.execute_command("ACL", "SETUSER", "default", "off")
            asked = lambda: page(admin, "/metrics", context=showing)[0] == 401  # noqa: E731
            wait_until(asked, "a certificate is not enough any more", patience_s=SOON_S)
            code, text = page(admin, "/metrics", "scraper", context=trusting)
            assert code == 200 and "duramen_coordinator_users_revision 2" in text, text
            assert "duramen_coordinator_member_certificate_seconds_left" in text
            assert page(admin, "/status", "scraper", "guess", context=trusting)[0] == 401
            status = json.loads(page(admin, "/status", "scraper", context=trusting)[1])
            assert status["servers"][0]["certificate_expires_unix_s"] > time.time()
            assert status["servers"][0]["users_revision"] == 2
    finally:
        coordinator.kill()
        coordinator.wait()
        coordinator.stdout.close()
