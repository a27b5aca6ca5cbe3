"""Users through redis-py: rights, ACL LOG, AUTH at connecting, the Unix socket."""

import pytest
import redis


@pytest.fixture
def admin(server):
    with redis.Redis(port=server.port, decode_responses=True) as client:
        client.flushall()
        client.acl_log_reset()
        yield client
        client.acl_deluser("ann")


def ann(server, **options):
    return redis.Redis(port=server.port, username="ann", password="open sesame", **options)


def test_a_user_has_its_rights_and_no_others(server, admin):
    assert admin.acl_setuser(
        "ann", enabled=True, passwords=["+open sesame"], keys=["app:*"], categories=["+@read"], commands=["+set"]
    )
    shown = admin.acl_getuser("ann")
    assert shown["enabled"] and "on" in shown["flags"] and shown["keys"] == ["~app:*"], shown
    with ann(server) as client:
        assert client.set("app:1", "v") and client.get("app:1") == b"v"
        with pytest.raises(redis.exceptions.NoPermissionError, match="access a key|keys used as arguments"):
            client.get("other")
        with pytest.raises(redis.exceptions.NoPermissionError, match="'del' command"):
            client.delete("app:1")
        assert admin.acl_setuser("ann", enabled=True, categories=["+@write"])
        assert client.delete("app:1") == 1, "the open connection has the new right"
    log = admin.acl_log(5)
    assert {entry["reason"] for entry in log} == {"key", "command"}, log


@pytest.mark.full
def test_a_wrong_password_is_refused_and_counted(server, admin):
    admin.acl_setuser("ann", enabled=True, passwords=["+open sesame"])
    before = admin.info("stats")["acl_access_denied_auth"]
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis(port=server.port, username="ann", password="guess").ping()
    assert admin.info("stats")["acl_access_denied_auth"] > before


@pytest.mark.duramen
def test_clients_connect_by_the_unix_socket(start, tmp_path):
    server = start("--unixsocket", tmp_path / "socket")
    with redis.Redis(unix_socket_path=str(tmp_path / "socket")) as client:
        assert client.set("k", "v") and client.get("k") == b"v"
    server.stop()
    assert not (tmp_path / "socket").exists()
