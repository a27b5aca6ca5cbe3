"""Servers on hosts of their own: network namespaces on a bridge, whose connections can be cut one
way or both.

All of it is in namespaces that this process makes and removes: the machine's own network is not
touched. A cut is made at the receiver: its nft drops packets from the other side, like a switch
that fails in one direction. Neither side gets an error.
"""

import itertools
import os
import secrets
import subprocess

import provide
import reaper

SUBNET = "10.177.0"


class Unable(Exception):
    """Namespaces can't be made here; the text is the reason."""


def run(*words, text=None):
    done = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unable(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A namespace with one address."""

    def __init__(self, network, name, number):
        self.network = network
        self.namespace = f"{network.name}-{name}"
        self.address = f"{SUBNET}.{number}"
        # Its end of the bridge's cable.
        self.port = f"port{number}"
        self.cuts = set()

    @property
    def prefix(self):
        """Prefix of a command that runs on this host; the process id is that of the command."""
        return [self.network.ip, "netns", "exec", self.namespace]

    def rules(self):
        drops = "".join(f"    ip saddr {address} drop\n" for address in sorted(self.cuts))
        table = f"table inet cut {{\n  chain arrives {{\n    type filter hook input priority 0\n{drops}  }}\n}}\n"
        run(*self.prefix, self.network.nft, "-f", "-", text=f"table inet cut\ndelete table inet cut\n{table}")


class Network:
    """A bridge with hosts. The first host, `hub`, is the bridge itself."""

    def __init__(self):
        if os.geteuid() != 0:
            raise Unable("only root makes network namespaces")
        self.ip, self.nft = provide.program("ip"), provide.program("nft")
        # Names of namespaces belong to the whole machine.
        self.name = f"duramen-{secrets.token_hex(4)}"
        self.hosts = []
        try:
            self.hub = self.add("hub", 1)
            self.link("link", "add", "bridge", "type", "bridge")
            self.link("addr", "add", f"{SUBNET}.1/24", "dev", "bridge")
            self.link("link", "set", "bridge", "up")
            self.hub.rules()
        except BaseException:
            self.end()
            raise

    def link(self, *words, host=None):
        run(self.ip, "-n", (host or self.hub).namespace, *words)

    def add(self, name, number):
        host = Host(self, name, number)
        reaper.at_the_end(self.ip, "netns", "del", host.namespace)
        run(self.ip, "netns", "add", host.namespace)
        self.hosts.append(host)
        self.link("link", "set", "lo", "up", host=host)
        return host

    def host(self, name, number=None):
        number = number or len(self.hosts) + 10
        host = self.add(name, number)
        port = host.port
        self.link("link", "add", port, "type", "veth", "peer", "name", "wire", "netns", host.namespace)
        self.link("link", "set", port, "master", "bridge", "up")
        self.link("addr", "add", f"{host.address}/24", "dev", "wire", host=host)
        self.link("link", "set", "wire", "up", host=host)
        return host

    def cut(self, left, right, one_way=False):
        """Drops packets from `left` hosts to `right` ones; also the other way round, unless
        `one_way`."""
        for sender, receiver in itertools.product(left, right):
            receiver.cuts.add(sender.address)
            if not one_way:
                sender.cuts.add(receiver.address)
        for host in {*left, *right}:
            host.rules()

    def slow(self, hosts, mbit):
        """Limits what each of these hosts sends, and what it receives. Raises [Unable] on a machine
        whose kernel has no such filter."""
        limit = ("tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
        tc = provide.program("tc")
        for host in hosts:
            for side, device in ((host, "wire"), (self.hub, host.port)):
                run(*side.prefix, tc, "qdisc", "add", "dev", device, "root", *limit)

    def heal(self):
        for host in self.hosts:
            if host.cuts:
                host.cuts.clear()
                host.rules()

    def end(self):
        for host in self.hosts:
            subprocess.run([self.ip, "netns", "del", host.namespace], capture_output=True)
        self.hosts = []
