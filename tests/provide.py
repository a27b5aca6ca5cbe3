"""What the tests need beside the program under test: clients, checkers, tools of the machine.

The first test that asks for one of them gets it: it is built or downloaded into a folder of `BUILT`,
or its Debian package is installed. Several processes of tests ask at the same time, so each folder
has a lock, and `apt-get` has one.

If something cannot be had, a test fails by a [Missing], whose text says what to install. Tests of
optional things (`optional`) skip then: their packages may be unreachable.

In a run of all tests each process of tests is in a network without a way out. A command that needs
one runs in the network that DURAMEN_TEST_OUTSIDE names.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import reaper

TESTS = pathlib.Path(__file__).resolve().parent
BUILT = pathlib.Path(os.environ.get("DURAMEN_TEST_BUILT", TESTS.parent / "target/clients")).absolute()

# File of the network namespace with access to registries of packages; without it: our own.
OUTSIDE = os.environ.get("DURAMEN_TEST_OUTSIDE")

# Longest time of one installation, in seconds.
INSTALL_S = 900

# Programs of the machine, and their Debian packages.
PACKAGES = {
    **{"redis-cli": "redis-tools", "redis-benchmark": "redis-tools", "curl": "curl", "openssl": "openssl"},
    **{"pkg-config": "pkg-config", "etcd": "etcd-server", "nft": "nftables", "ip": "iproute2", "tc": "iproute2"},
    **{"node": "nodejs", "npm": "npm", "go": "golang-go", "java": "default-jdk-headless", "javac": "default-jdk-headless"},
    **{"mvn": "maven", "buildah": "buildah", "lintian": "lintian", "logrotate": "logrotate"},
    **{"systemd-analyze": "systemd", "dpkg-source": "dpkg-dev", "tclsh": "tcl", "unshare": "util-linux"},
}

# A user's search path may lack the folders of administration commands. The last folder has the
# programs that `redis_server` makes.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", str(BUILT / "bin")])


class Missing(Exception):
    """Something cannot be had; the text says what, and why."""


def optional(provision, *arguments):
    """The result of a function of this module; if it cannot be had, the test is skipped."""
    import pytest  # noqa: PLC0415 - libraries/run has no pytest yet

    try:
        return provision(*arguments)
    except Missing as why:
        pytest.skip(f"cannot be had: {why}")


def remembered(provision):
    """Calls a function once for the same arguments, also if it has failed: a test that needs
    something that cannot be had does not wait for it again."""

    @functools.cache
    def outcome(*arguments):
        try:
            return provision(*arguments), None
        except Missing as why:
            return None, str(why)

    @functools.wraps(provision)
    def result(*arguments):
        found, why = outcome(*arguments)
        if why:
            raise Missing(why)
        return found

    return result


@contextlib.contextmanager
def untimed():
    """Stops the clock of pytest-timeout meanwhile: an installation has a limit of its own, and is
    no part of the test that needs it first."""
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)


# Locks of each thread of this process.
HELD = set()


@contextlib.contextmanager
def lock(path):
    """One process, and one thread of it, after the other; who has the lock may lock again."""
    held = (threading.get_ident(), path)
    if held in HELD:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        with untimed():
            fcntl.flock(file, fcntl.LOCK_EX)
        HELD.add(held)
        try:
            yield
        finally:
            HELD.discard(held)


def apt():
    """Packages of the machine are installed by one process after the other."""
    return lock(BUILT / ".apt.lock")


def once(folder, sources, work):
    """Runs `work` in an empty folder, unless it was done there before for the same sources."""
    with lock(folder.parent / f".{folder.name}.lock"):
        digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
        stamp = folder / "built-from"
        if stamp.exists() and stamp.read_text() == digest:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        work()
        stamp.write_text(digest)


def call(*command, cwd=None, env=None):
    """Runs a command with access to the registries of packages; returns its output."""
    command = [str(word) for word in command]
    enter = ["nsenter", f"--net={OUTSIDE}"] if OUTSIDE else []
    # An installation that is cut short may break the machine: the end of the tests does not end it.
    own = {name: value for name, value in os.environ.items() if name != reaper.MARK}
    try:
        with untimed():
            done = subprocess.run(
                [*enter, *command],
                cwd=cwd,
                env={**own, **(env or {})},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=INSTALL_S,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"`{' '.join(command)}` failed: {' '.join(lines[-3:])}")
    return done.stdout


# --- Programs and packages of the machine.


@remembered
def program(name):
    """The path of a program of the machine. Its Debian package is installed if it is missing."""
    package = PACKAGES[name]
    if not shutil.which(name):
        with apt():
            if not shutil.which(name):
                install(package)
    found = shutil.which(name)
    if not found:
        raise Missing(f"the package {package} has no program {name}")
    return found


@remembered
def debian(*packages):
    """Makes sure that these Debian packages are installed."""
    if not shutil.which("dpkg-query"):
        raise Missing(f"these packages are Debian's: {' '.join(packages)}")
    with apt():
        missing = [package for package in packages if not is_installed(package)]
        if missing:
            install(*missing)


def is_installed(package):
    status = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package], capture_output=True, text=True)
    return status.returncode == 0 and status.stdout.startswith("ii")


def install(*packages):
    """Installs Debian packages; the caller has the lock of `apt-get`."""
    by_hand = f"install it first: apt-get install {' '.join(packages)}"
    if not shutil.which("apt-get"):
        raise Missing(by_hand)
    prefix = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "DPkg::Lock::Timeout=600"]
    if os.geteuid():
        allowed = shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0
        if not allowed:
            raise Missing(by_hand)
        prefix = ["sudo", "-n", *prefix]
    command = (*prefix, "install", "-y", "--no-install-recommends", *packages)
    try:
        try:
            call(*command)
        except Missing:
            # Its list of packages is missing or old.
            call(*prefix, "update")
            call(*command)
    except Missing as why:
        raise Missing(f"{why}; {by_hand}") from None


@remembered
def redis_server():
    """The path of redis-server. Debian's redis-check-rdb is the same program under another name; the
    package redis-server would only add a service that takes port 6379."""
    if found := shutil.which("redis-server"):
        return found
    program("redis-cli")
    same = shutil.which("redis-check-rdb")
    if not same:
        raise Missing("there is no redis-server: install the package redis-tools or redis-server")
    link = BUILT / "bin/redis-server"
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(same)
    return str(link)


# --- Clients, and the checker of histories.


def go(*arguments, cwd):
    """Runs a command of the installed Go."""
    program("go")
    return call("go", *arguments, cwd=cwd, env={"GOTOOLCHAIN": "local"})


def go_program(name, source, *package):
    """The path of a program that is built from the module in `source`."""
    folder = BUILT / "programs" / name
    sources = [source / "go.mod", source / "go.sum", *sorted(source.glob("*.go"))]
    build = ("build", "-mod=readonly", "-buildvcs=false", "-o", folder / name, *(package or ["."]))
    once(folder, sources, lambda: go(*build, cwd=source))
    return str(folder / name)


@remembered
def go_client():
    """The path of the program of go-redis."""
    return go_program("go-client", TESTS / "clients/go")


@remembered
def checker():
    """The path of the checker of histories."""
    return go_program("checker", TESTS / "checker")


@remembered
def node():
    """The path of the program of node-redis and ioredis."""
    program("node")
    program("npm")
    folder = BUILT / "node"
    sources = [TESTS / "clients/node" / name for name in ("package.json", "package-lock.json", "main.js")]

    def make():
        for source in sources:
            shutil.copy(source, folder)
        call("npm", "ci", "--silent", "--no-audit", "--no-fund", cwd=folder)

    once(folder, sources, make)
    return str(folder / "main.js")


@remembered
def java():
    """The class path of the programs of Jedis and Lettuce."""
    program("javac")
    program("mvn")
    folder = BUILT / "java"
    pom = TESTS / "clients/java/pom.xml"
    sources = [pom, *sorted((TESTS / "clients/java/src").rglob("*.java"))]
    command = ("mvn", "--quiet", "--batch-mode", "compile", "dependency:copy-dependencies", f"-Dbuilt={folder}", "--file", pom)
    once(folder, sources, lambda: call(*command))
    return f"{folder}/classes:{folder}/dependency/*"


# --- Readers of metrics, linters, Redis's tests: all of them are optional.


@remembered
def redis_exporter():
    """The path of redis_exporter; its version is in `exporter/go.mod`."""
    return go_program("redis_exporter", TESTS / "exporter", "github.com/oliver006/redis_exporter")


@remembered
def promtool():
    """The path of promtool. It is unpacked from Debian's package, because installing that would add
    a service."""
    folder = BUILT / "promtool"

    def make():
        with apt():
            try:
                call("apt-get", "download", "-q", "prometheus", cwd=folder)
            except Missing:
                if os.geteuid():
                    raise
                call("apt-get", "update", "-q")
                call("apt-get", "download", "-q", "prometheus", cwd=folder)
        [package] = folder.glob("*.deb")
        call("dpkg", "-x", package, folder)
        (folder / "usr/bin/promtool").rename(folder / "promtool")

    once(folder, [], make)
    return str(folder / "promtool")


@remembered
def linters():
    """The folder of the environment with Python's packages that check charts and container files."""
    folder = BUILT / "linters"
    requirements = TESTS / "packages/requirements.txt"
    once(folder, [requirements], lambda: environment(folder, requirements))
    return folder


def environment(folder, *requirements):
    """Makes an environment of Python with these packages."""
    call(sys.executable, "-m", "venv", "--clear", folder)
    files = [word for file in requirements for word in ("-r", file)]
    call(folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *files)


@remembered
def redis_suite():
    """The folder of Redis's own test suite, from Debian's source package."""
    for name in ("dpkg-source", "redis-cli", "redis-benchmark", "tclsh"):
        program(name)
    folder = BUILT / "redis-suite"
    sources = [TESTS / "redis_suite" / name for name in ("fetch", "suite.sed", "redis-server")]
    once(folder, sources, lambda: call(sources[0], folder))
    return folder / "redis"


if __name__ == "__main__":
    # `provide.py PROGRAM…`, for tests in other languages; prints the path of each.
    try:
        for wanted in sys.argv[1:]:
            print(redis_server() if wanted == "redis-server" else program(wanted))
    except Missing as reason:
        sys.exit(f"a program of the tests cannot be had: {reason}")
