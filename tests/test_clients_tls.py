"""The client libraries over TLS 1.3, as an ACL user with just the rights of the scenarios."""

import pytest

import harness
import test_clients
from test_tls import cert, options

pytestmark = pytest.mark.duramen

# The scenarios use binary keys too, so the pattern leaves out the keys of `denied` alone.
RIGHTS = "on >right ~[^d]* +@read +@write +@connection +@transaction +@keyspace -@dangerous"
USER = {"CLIENT_USER": "worker", "CLIENT_PASSWORD": "right"}
CASES = [("redis-py", 3, True), ("go-redis", 3, True), ("node-redis", 3, False), ("ioredis", 2, False)]


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """An authority with certificates for `server`, and for the client `alice`."""
    folder = tmp_path_factory.mktemp("certs")
    cert("init", folder)
    cert("issue", "alice", "--dir", folder)
    return folder


def serve(tmp_path, certs, mutual):
    """A server whose user `default` is off; a restart keeps its users in a file."""
    users = tmp_path / "users.acl"
    users.write_text(f"user default off\nuser worker {RIGHTS}\n")
    port = harness.free_port()
    more = ("--tls-auth-clients", "yes" if mutual else "no", "--aclfile", users)
    server = harness.Server(tmp_path, *options(certs, port, *more), threads=2)
    server.port = harness.free_port()
    return server, port


def environment(certs, mutual):
    own = {"CLIENT_CERT": str(certs / "alice.crt"), "CLIENT_KEY": str(certs / "alice.key")}
    return {**USER, "CLIENT_CA": str(certs / "ca.crt"), **(own if mutual else {})}


@pytest.mark.parametrize("client, resp, mutual", CASES, ids=[case[0] for case in CASES])
def test_scenarios(tmp_path, certs, client, resp, mutual):
    server, port = serve(tmp_path, certs, mutual)
    with server:
        said, errors = test_clients.run_program(client, resp, server, port, environment(certs, mutual))
    assert said == dict.fromkeys([*test_clients.SCENARIOS, "denied"], ""), errors
