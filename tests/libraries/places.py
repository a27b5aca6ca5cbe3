"""Where the libraries are installed, and how; by the package managers of their languages.

Everything goes into a folder outside of the source tree: `libraries` in DURAMEN_TEST_BUILT, beside
the client programs of the other tests. Debian's packages are the exception: they go where Debian
puts them, if this user may install them.
"""

import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
BUILT = pathlib.Path(os.environ.get("DURAMEN_TEST_BUILT", HERE.parent.parent / "target/clients")).absolute()
HOME = BUILT / "libraries"

# Longest time of one installation, in seconds.
INSTALL_S = 900


class Missing(Exception):
    """Something cannot be had; the text says what, and why."""


def call(*command, cwd=None, env=None):
    """Runs a command to its end; raises [Missing] with the end of its output."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{' '.join(command)}: {' '.join(lines[-3:])}")
    return done.stdout


def once(folder, sources, work):
    """Runs `work` in an empty folder, unless it was already run there with these sources.

    Suites run beside each other and share folders: one makes a folder, the others wait for it.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    stamp = folder / "made-of"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == digest:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        work()
        stamp.write_text(digest)


def is_installed(package):
    status = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package], capture_output=True, text=True)
    return status.returncode == 0 and status.stdout.startswith("ii")


@functools.cache
def debian(*packages):
    """Makes sure that these packages of Debian are installed."""
    if not shutil.which("dpkg-query"):
        raise Missing(f"these packages are Debian's: {' '.join(packages)}")
    missing = [package for package in packages if not is_installed(package)]
    if not missing:
        return
    if os.geteuid():
        raise Missing(f"install first: apt-get install {' '.join(missing)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("apt-get", "install", "-qq", "--no-install-recommends", *missing)
    try:
        call(*install, env=quiet)
    except Missing:
        call("apt-get", "update", "-qq")
        call(*install, env=quiet)


def debian_source(package, folder):
    """Unpacks a source package of Debian into a folder; the list of these packages is its own."""
    lists, sources = folder / "lists", folder / "sources"
    (lists / "partial").mkdir(parents=True)
    sources.mkdir()
    for file in pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"):
        text = file.read_text()
        if "/debian" in text:
            (sources / file.name).write_text(re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE))
    own = ("Dir::Etc::SourceList=/dev/null", f"Dir::Etc::SourceParts={sources}", f"Dir::State::Lists={lists}")
    options = [word for value in own for word in ("-o", value)]
    call("apt-get", "-q", *options, "update")
    call("apt-get", "-q", *options, "source", "--download-only", package, cwd=folder)
    [description] = folder.glob("*.dsc")
    call("dpkg-source", "--no-check", "-x", description, folder / "source")
    shutil.rmtree(lists)


def program(name, *packages):
    """Makes sure that there is a program of this name."""
    if not shutil.which(name):
        debian(*packages)


@functools.cache
def python():
    """The Python that has the packages; its path."""
    home = HOME / "python"
    requirements = HERE / "python/requirements.txt"

    def make():
        call("python3", "-m", "venv", "--clear", home)
        call(home / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements)

    once(home, [requirements], make)
    return str(home / "bin/python")


@functools.cache
def node():
    """The folder of the programs and their packages."""
    program("node", "nodejs")
    program("npm", "npm")
    home = HOME / "node"
    files = [HERE / "node" / name for name in ("package.json", "package-lock.json")]

    def make():
        for file in files:
            shutil.copy(file, home)
        call("npm", "ci", "--silent", "--no-audit", "--no-fund", cwd=home)

    once(home, files, make)
    for file in (HERE / "node").glob("*.js"):
        shutil.copy(file, home)
    return home


@functools.cache
def go():
    """The folder of the built programs."""
    program("go", "golang-go")
    home = HOME / "go"
    home.mkdir(parents=True, exist_ok=True)
    call("go", "build", "-mod=readonly", "-buildvcs=false", "-o", f"{home}/", "./...", cwd=HERE / "go")
    return home


@functools.cache
def java():
    """The path of classes."""
    program("javac", "default-jdk-headless")
    program("mvn", "maven")
    home = HOME / "java"
    pom = HERE / "java/pom.xml"
    maven = ("mvn", "--quiet", "--batch-mode", f"-Dbuilt={home}", "--file", pom)
    sources = [pom, *sorted((HERE / "java").rglob("*.java"))]
    once(home, sources, lambda: call(*maven, "compile", "dependency:copy-dependencies"))
    return f"{home}/classes:{home}/dependency/*"


def version(language, package):
    """The version of a package, as installed."""
    if language == "python":
        code = f"import importlib.metadata as m; print(m.version('{package}'))"
        return call(python(), "-c", code).strip()
    if language == "node":
        return json.loads((node() / "node_modules" / package / "package.json").read_text())["version"]
    if language == "go":
        return call("go", "list", "-m", "-f", "{{.Version}}", package, cwd=HERE / "go").strip().lstrip("v")
    if language == "java":
        [jar] = [jar for jar in (HOME / "java/dependency").glob(f"{package}-[0-9]*.jar")]
        return jar.stem.removeprefix(f"{package}-")
    found = call("dpkg-query", "-W", "-f", "${source:Upstream-Version}", package)
    return found.split("+")[0]
