"""Where the packages' sources are, and a machine to install packages on."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"


def run(*command, **options):
    """Output of a command, errors included; a failure has its output."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, timeout=300, **options)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


class Machine:
    """The root file system of this machine, changes apart: an overlay in namespaces of their own of
    mounts, processes and network. So ports and paths are those of the package."""

    def __init__(self, folder):
        layers = {name: folder / name for name in ("upper", "work", "root")}
        for layer in layers.values():
            layer.mkdir()
        self.root = layers["root"]
        script = (
            "set -e; mount -t overlay overlay -o "
            f"lowerdir=/,upperdir={layers['upper']},workdir={layers['work']} {self.root}; cd {self.root}; "
            "mount -t proc proc proc; mount --rbind /dev dev; mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp; "
            "ip link set lo up; echo ready; exec sleep infinity"
        )
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.holder.stdout.readline()
        if said != "ready\n":
            self.end()
            pytest.skip(f"no overlay of this machine's root: {said.strip()}")
        children = pathlib.Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children")
        self.pid = children.read_text().split()[0]

    def command(self, *words):
        enter = ("nsenter", "--target", self.pid, "--mount", "--net", "--pid", "chroot", self.root)
        return list(map(str, (*enter, *words)))

    def run(self, *words):
        return run(*self.command(*words))

    def fails(self, *words):
        return subprocess.run(self.command(*words), capture_output=True, check=False).returncode != 0

    def write(self, path, text):
        subprocess.run(self.command("tee", path), input=text, text=True, check=True, stdout=subprocess.DEVNULL)

    def start(self, unit, *environment):
        """Starts the command of an installed unit, confined as the unit says."""
        unit = f"/lib/systemd/system/{unit}"
        script = pathlib.Path(__file__).parent / "confine.py"
        return subprocess.Popen(self.command("unshare", "--mount", "python3", script, unit, *environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
