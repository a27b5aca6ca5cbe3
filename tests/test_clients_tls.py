"""The client libraries over TLS 1.3, as an ACL user with just the rights of the scenarios."""

import re
import time

import pytest

import harness
import test_clients
from test_tls import options

pytestmark = pytest.mark.duramen

# The scenarios use binary keys too, so the pattern leaves out the keys of `denied` alone.
RIGHTS = "on >right ~[^d]* +@read +@write +@connection +@transaction +@keyspace -@dangerous"
USER = {"CLIENT_USER": "worker", "CLIENT_PASSWORD": "right"}
CASES = [
    *(("redis-py", 3, True), ("go-redis", 3, True), ("node-redis", 3, False), ("ioredis", 2, False)),
    *(("jedis", 3, True), ("lettuce", 3, True)),
]


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


@pytest.mark.parametrize("client, resp, mutual", test_clients.parameters(CASES, CASES[:2]), ids=[case[0] for case in CASES])
def test_scenarios(tmp_path, certs, client, resp, mutual):
    server, port = serve(tmp_path, certs, mutual)
    with server:
        said, errors = test_clients.run_program(client, resp, server, port, environment(certs, mutual))
    assert said == dict.fromkeys([*test_clients.SCENARIOS, "denied"], ""), errors


# Each with what the library may call it.
REFUSALS = {
    "wrong authority": "(?i)certificate.*(verify failed|unknown authority)|unable to (verify|get).*certificate|self.signed|PKIX",
    "wrong password": "(?i)WRONGPASS|invalid username-password pair",
}
# Longest time until a library tells its caller, with the start of its program, which takes seconds
# on a busy machine. One that tries again and again ends at the watchdog of `run_program`.
REFUSED_WITHIN_S = 40


@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("client, resp, mutual", test_clients.parameters(CASES, CASES[:2]), ids=[case[0] for case in CASES])
def test_a_refused_client_is_told_why(tmp_path, certs, client, resp, mutual, why):
    server, port = serve(tmp_path, certs, mutual)
    variables = {**environment(certs, mutual), "CLIENT_REFUSED": "yes"}
    if why == "wrong password":
        variables["CLIENT_PASSWORD"] = "wrong"
    else:
        harness.cert("init", tmp_path / "others")
        variables["CLIENT_CA"] = str(tmp_path / "others" / "ca.crt")
    with server:
        began = time.monotonic()
        said, errors = test_clients.run_program(client, resp, server, port, variables)
        took = time.monotonic() - began
    assert list(said) == ["connect"] and re.search(REFUSALS[why], said["connect"]), (said, errors)
    assert took < REFUSED_WITHIN_S, (took, said)
