"""The Debian package is installed on a machine, serves under the sandbox of its unit, is upgraded,
removed and purged."""

import contextlib
import re
import subprocess

import pytest

import harness
import provide
from installing import PACKAGING, run

pytestmark = pytest.mark.duramen

UNITS = ["duramen.service", "duramen@shop.service", "duramen-coordinator.service"]
CONFIG = "/etc/duramen/duramen.toml"
# Exposure by systemd's own measure, from 0 to 10: a service without a sandbox has 9.6. The units have
# no `PrivateTmp`, which counts for 0.2 of it: a snapshot that a server writes into /tmp would be
# hidden from the operator who asked for it.
EXPOSURE_MAX = 1.6


def changed(package, folder, version, edit):
    """A package of this version, whose files `edit` has changed."""
    run("dpkg-deb", "--raw-extract", package, folder)
    control = folder / "DEBIAN/control"
    control.write_text(re.sub("(?m)^Version: .*", f"Version: {version}", control.read_text()))
    edit(folder)
    made = folder.with_suffix(".deb")
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", folder, made)
    return made


def as_served(machine, *words):
    return machine.run("redis-cli", *words).strip()


@contextlib.contextmanager
def serving(machine, unit="duramen.service"):
    """The server of an installed unit; it ends with a clean stop."""
    process = machine.start(unit)
    said = process.stdout.readline()
    assert said.startswith("ready "), process.communicate(timeout=harness.PATIENCE_S)
    yield process
    stop(machine, unit, process)


def pid_of(machine, unit):
    return machine.run("cat", f"/run/{unit}.pid")


def stop(machine, unit, process):
    machine.run("kill", pid_of(machine, unit))
    _, log = process.communicate(timeout=harness.PATIENCE_S)
    assert process.returncode == 0, log


def test_the_packages_have_what_they_need(packages):
    assert set(packages) == {"duramen", "duramen-dbgsym"}
    files = run("dpkg-deb", "--contents", packages["duramen"])
    for path in [
        *("usr/bin/duramen", "etc/duramen/duramen.toml", "etc/logrotate.d/duramen", "usr/share/man/man1/duramen.1.gz"),
        *("usr/share/man/man1/duramen-serve.1.gz", "usr/share/bash-completion/completions/duramen"),
        *("lib/systemd/system/duramen.service", "lib/systemd/system/duramen@.service"),
        *("lib/systemd/system/duramen-coordinator.service", "usr/share/doc/duramen/examples/duramen.rules.yml"),
    ]:
        assert re.search(rf"(?m) root/root .* \./{re.escape(path)}$", files), f"{path} is not in\n{files}"
    assert not re.search(r"(?m)^.{5}w|^.{8}w", files.replace("lrwxrwxrwx", "l---------")), "files that others may write"
    fields = run("dpkg-deb", "--field", packages["duramen"])
    assert re.search(r"Depends: libc6 \(>= 2\.\d+\)", fields), fields
    lines = run("dpkg-deb", "--contents", packages["duramen-dbgsym"])
    assert "./usr/lib/debug/usr/bin/duramen.debug" in lines


@pytest.mark.full
def test_lintian_finds_no_error(packages):
    provide.optional(provide.program, "lintian")
    run("lintian", "--fail-on", "error", "--allow-root", packages["duramen"])


@pytest.mark.full
def test_the_package_from_its_installation_to_its_purge(packages, machine, tmp_path):
    package = packages["duramen"]
    install(machine, package)
    mode = lambda path: machine.run("stat", "--format", "%a %U:%G", path).strip()  # noqa: E731
    assert (mode("/etc/duramen"), mode(CONFIG)) == ("770 root:duramen", "640 duramen:duramen")
    assert (mode("/var/lib/duramen"), mode("/var/log/duramen")) == ("750 duramen:duramen",) * 2
    assert "duramen.service" in machine.run("ls", "/etc/systemd/system/multi-user.target.wants")
    assert "correct" in machine.run("duramen", "config", "check", CONFIG)

    # Everything that needs a permission of the unit: the log, flash, snapshots, a written file.
    settings = machine.run("cat", CONFIG).replace('memory = "50%"', 'memory = "64mb"').replace("# log-file", "log-file")
    settings += 'flash-file = "/var/lib/duramen/flash"\nflash-size = "64mb"\nnative-socket-dir = "/run/duramen"\n'
    machine.write(CONFIG, settings)
    with serving(machine):
        assert as_served(machine, "set", "kept", "value") == "OK"
        assert as_served(machine, "bgsave")
        assert as_served(machine, "config", "set", "maxclients", "4321") == "OK"
        assert as_served(machine, "config", "rewrite") == "OK"
        load_flash(machine)
        status = machine.run("cat", f"/proc/{pid_of(machine, 'duramen.service')}/status")
        assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert "maxclients = 4321" in machine.run("cat", CONFIG)
    assert "serving" in machine.run("cat", "/var/log/duramen/duramen.log")

    # An upgrade keeps the data and the changed file, and brings the new text of an unchanged one.
    def edit(folder):
        for path in (CONFIG, "/etc/default/duramen-coordinator"):
            file = folder / path[1:]
            file.write_text(file.read_text() + "# of the next version\n")

    later = changed(package, tmp_path / "later", "99.0", edit)
    install(machine, later)
    assert "next version" not in machine.run("cat", CONFIG)
    assert "next version" in machine.run("cat", f"{CONFIG}.dpkg-dist")
    assert "next version" in machine.run("cat", "/etc/default/duramen-coordinator")
    assert (mode("/etc/duramen"), mode(CONFIG)) == ("770 root:duramen", "640 duramen:duramen")
    install(machine, later)  # again: nothing breaks
    with serving(machine):
        assert as_served(machine, "get", "kept") == "value"
        assert as_served(machine, "config", "get", "maxclients").split() == ["maxclients", "4321"]

    assert "the data stays" in machine.run("dpkg", "--no-triggers", "--remove", "duramen")
    assert machine.fails("test", "-e", "/usr/bin/duramen")
    assert "wal" in machine.run("ls", "/var/lib/duramen/data")
    install(machine, later)
    with serving(machine):
        assert as_served(machine, "get", "kept") == "value"
    said = machine.run("dpkg", "--no-triggers", "--purge", "duramen")
    assert "deleting all data" in said
    for path in ("/var/lib/duramen", "/var/log/duramen", "/etc/duramen", "/etc/systemd/system/multi-user.target.wants/duramen.service"):
        assert machine.fails("test", "-e", path), f"{path} stays\n{said}"
    assert machine.fails("getent", "passwd", "duramen")


def install(machine, package):
    """Local changes win, as with `apt-get` that nobody watches."""
    with open(package, "rb") as file:
        subprocess.run(machine.command("tee", "/tmp/duramen.deb"), stdin=file, stdout=subprocess.DEVNULL, check=True)
    # Triggers of other packages, such as the index of all manual pages, take long.
    return machine.run("dpkg", "--no-triggers", "--force-confold", "--force-unsafe-io", "--install", "/tmp/duramen.deb")


def load_flash(machine):
    """More data than memory has room for, so that flash is written and read."""
    requests = b"".join(harness.encode("SET", f"big:{n}", b"v" * 150_000) for n in range(400))
    done = subprocess.run(machine.command("redis-cli", "--pipe"), input=requests, capture_output=True, check=False)
    assert b"errors: 0, replies: 400" in done.stdout, done
    assert as_served(machine, "strlen", "big:0") == "150000"
    assert int(re.search(r"duramen_flash_segments:(\d+)", as_served(machine, "info", "memory"))[1]) > 0


@pytest.fixture(scope="module")
def installed(packages, machine):
    """After the test that purges the package: that one has a machine without traces of it."""
    install(machine, packages["duramen"])
    return machine


@pytest.mark.full
def test_systemd_finds_nothing_to_say_about_the_units(installed):
    provide.optional(provide.program, "systemd-analyze")
    assert installed.run("systemd-analyze", "verify", "--man=no", *UNITS).strip() == ""


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.full
def test_the_units_are_as_closed_as_they_can_be(installed, unit):
    provide.optional(provide.program, "systemd-analyze")
    text = installed.run("systemd-analyze", "security", "--no-pager", "--offline=true", unit)
    exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)[1])
    print(f"{unit}: {exposure}")
    assert exposure <= EXPOSURE_MAX, text


def test_the_units_have_one_sandbox():
    """A setting that one of the units lacks is probably forgotten."""
    own = re.compile("Description|Documentation|WorkingDirectory|Exec|Environment|StateDirectory=|Timeout|Restart|#|$")
    only_servers = re.compile("RuntimeDirectory|ReadWritePaths|LimitMEMLOCK")
    lines = []
    for unit in UNITS:
        file = PACKAGING / "debian" / re.sub("@.*service", "@.service", unit)
        lines.append([line for line in file.read_text().splitlines() if not own.match(line)])
    assert lines[0] == lines[1]
    assert [line for line in lines[0] if not only_servers.match(line)] == lines[2]


@pytest.mark.full
def test_a_coordinator_and_a_member_run_under_their_units(installed):
    installed.run("sh", "-c", "umask 077; echo 0123456789012345678901234567890123456789 >/etc/duramen/token; chown duramen /etc/duramen/token")
    store = "/var/lib/duramen/coordinator/other"  # as etcd would be
    installed.write("/etc/default/duramen-coordinator", f'DURAMEN_COORDINATOR_STORE=redb:{store}\nDURAMEN_COORDINATOR_OPTIONS="--cluster shop --replicas 1 --cluster-token-file /etc/duramen/token"\n')
    installed.write("/etc/duramen/shop.toml", 'cluster = "shop"\ncoordinator = "127.0.0.1:7400"\ncluster-token-file = "/etc/duramen/token"\nmemory = "64mb"\n')
    with serving(installed, "duramen-coordinator.service"), serving(installed, "duramen@shop.service"):
        said = installed.run("duramen", "status", "--coordinator", "127.0.0.1:7400", "--cluster-token-file", "/etc/duramen/token")
        assert re.search(r"(?m)^0\.1 +up ", said), said
        assert installed.run("ls", store)


@pytest.mark.full
def test_the_filter_of_the_test_is_in_force(installed):
    """With one more set of calls forbidden, no server starts: so those of the unit are needed, and
    are allowed."""
    unit = installed.run("cat", "/lib/systemd/system/duramen.service")
    narrow = unit.replace("SystemCallErrorNumber", "SystemCallFilter=~@io-event\nSystemCallErrorNumber")
    installed.write("/lib/systemd/system/duramen-narrow.service", narrow)
    process = installed.start("duramen-narrow.service", "DURAMEN_MEMORY=64mb", "DURAMEN_DIR=", "DURAMEN_LEVEL=memory")
    assert process.communicate(timeout=harness.PATIENCE_S)[0] == "" and process.returncode != 0


@pytest.mark.full
def test_logs_are_rotated(installed):
    provide.optional(provide.program, "logrotate")
    log = "/var/log/duramen/duramen.log"
    installed.run("sh", "-c", f"echo line >{log}; chown duramen:duramen {log}")
    installed.run("logrotate", "--force", "--state", "/tmp/state", "/etc/logrotate.d/duramen")
    assert installed.run("stat", "--format", "%a %U %s", log).strip() == "600 duramen 0"
    assert installed.run("cat", f"{log}.1") == "line\n"
