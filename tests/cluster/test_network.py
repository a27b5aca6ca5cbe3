"""The cuts of network.py block exactly the named packets."""

import subprocess
import sys

import pytest

import harness
from network import Network, Unable

pytestmark = pytest.mark.duramen

LISTEN = "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True)\nwhile True: s.accept()[0].sendall(b'x')"
CALL = "import socket, sys; t = float(sys.argv[2]); s = socket.create_connection((sys.argv[1], 7000), t); s.settimeout(t); s.recv(1)"

# Nothing arrives through a cut, however long the wait.
CUT_S = 0.4


def test_cuts():
    try:
        network = Network()
    except Unable as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    listeners = []
    try:
        one, other, third = (network.host(name) for name in ("one", "other", "third"))
        for host in (network.hub, one, other, third):
            listener = subprocess.Popen([*host.prefix, sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
            listeners.append(listener)
            assert listener.stdout.readline() == b"ready\n"

        def reaches(sender, receiver, patience_s=harness.PATIENCE_S):
            command = [*sender.prefix, sys.executable, "-c", CALL, receiver.address, str(patience_s)]
            return subprocess.run(command, capture_output=True, timeout=patience_s + harness.PATIENCE_S).returncode == 0

        def is_cut(sender, receiver):
            return not reaches(sender, receiver, CUT_S)

        assert reaches(one, other) and reaches(other, third) and reaches(network.hub, one) and reaches(one, network.hub)
        network.cut([one], [other])
        assert is_cut(one, other) and is_cut(other, one)
        assert reaches(one, third) and reaches(network.hub, other)
        network.heal()
        # TCP needs both ways, so a connection from either side fails.
        network.cut([one], [other, network.hub], one_way=True)
        assert one.cuts == set() and other.cuts == {one.address}
        assert is_cut(one, other) and is_cut(other, one) and is_cut(network.hub, one)
        assert reaches(other, network.hub)
        network.heal()
        assert reaches(one, other) and reaches(other, one)
    finally:
        for listener in listeners:
            listener.kill()
            listener.wait()
            listener.stdout.close()
        network.end()
