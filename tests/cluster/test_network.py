"""The cuts of network.py cut what they say, and nothing else."""

import subprocess
import sys

import pytest

import harness
from network import Network, Unable

pytestmark = pytest.mark.duramen

LISTEN = "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True)\nwhile True: s.accept()[0].sendall(b'x')"
CALL = "import socket, sys; s = socket.create_connection((sys.argv[1], 7000), 0.4); s.settimeout(0.4); s.recv(1)"


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

        def reaches(sender, receiver):
            command = [*sender.prefix, sys.executable, "-c", CALL, receiver.address]
            return subprocess.run(command, capture_output=True, timeout=harness.PATIENCE_S).returncode == 0

        assert reaches(one, other) and reaches(other, third) and reaches(network.hub, one) and reaches(one, network.hub)
        network.cut([one], [other])
        assert not reaches(one, other) and not reaches(other, one)
        assert reaches(one, third) and reaches(network.hub, other)
        network.heal()
        # TCP needs both ways, so a connection from either side fails.
        network.cut([one], [other, network.hub], one_way=True)
        assert one.cuts == set() and other.cuts == {one.address}
        assert not reaches(one, other) and not reaches(other, one) and not reaches(network.hub, one)
        assert reaches(other, network.hub)
        network.heal()
        assert reaches(one, other) and reaches(other, one)
    finally:
        for listener in listeners:
            listener.kill()
            listener.wait()
            listener.stdout.close()
        network.end()
