"""The native protocol's handshake and frames by hand, as described in docs/native-protocol.md."""

import hmac
import os
import struct

import harness

# Roles of an opening.
CLIENT, SERVER, COORDINATOR, REPLICA = 1, 2, 3, 4
OPENING_BYTES = 48
PROOF = 5
ANSWER, ERROR = 1, 2


class RefusedError(ConnectionError):
    """The other side refused the connection with a reason, or ended it."""


def opening(role, versions=(2, 2), magic=b"DURAMENN"):
    return magic + struct.pack("<HHBxxx", *versions, role) + os.urandom(32)


def frame(kind, body, payload=b"", length=None, flags=0, request=1, crc=None):
    head = struct.pack("<IHHQQQI", len(body) + len(payload) if length is None else length, kind, flags, request, 0, 0, len(body))
    sealed = harness.crc32c(head + body) if crc is None else crc
    return head + struct.pack("<I", sealed) + body + payload


def receive(peer, length):
    received = b""
    while len(received) < length:
        piece = peer.recv(length - len(received))
        if not piece:
            raise RefusedError("the connection ended")
        received += piece
    return received


def shake(peer, role, cluster=b"", token=b""):
    """Goes through the handshake as the connecting side, on a blocking socket."""
    ours = opening(role)
    peer.sendall(ours)
    said = ours + receive(peer, OPENING_BYTES)

    def prove(label, name):
        nonlocal said
        body = hmac.digest(token, label + said + name, "sha256") + name
        said += body
        peer.sendall(frame(PROOF, body, request=0))

    prove(b"DURAMENN proof of who connected", b"")
    head = receive(peer, 40)
    length, kind, flags = struct.unpack_from("<IHH", head)
    body = receive(peer, length)
    if flags & ERROR:
        raise RefusedError(body[16:].decode())
    assert (kind, flags) == (PROOF, ANSWER)
    tag, name = body[:32], body[32:]
    assert tag == hmac.digest(token, b"DURAMENN proof of who accepted" + said + name, "sha256")
    said += body
    prove(b"DURAMENN name of who connected", cluster)
