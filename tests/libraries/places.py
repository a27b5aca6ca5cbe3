"""Where the libraries are installed, and how; by the package managers of their languages.

Everything goes into a folder outside of the source tree: `libraries` in DURAMEN_TEST_BUILT, beside
the client programs of the other tests. Debian's packages are the exception: they go where Debian
puts them, if this user may install them.
"""

import functools
import json
import pathlib
import re
import shutil

import provide
from provide import Missing, call, debian, once, program

HERE = pathlib.Path(__file__).resolve().parent
HOME = provide.BUILT / "libraries"


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


@functools.cache
def python():
    """The Python that has the packages; its path."""
    home = HOME / "python"
    requirements = HERE / "python/requirements.txt"

    once(home, [requirements], lambda: provide.environment(home, requirements))
    return str(home / "bin/python")


@functools.cache
def node():
    """The folder of the programs and their packages."""
    program("node")
    program("npm")
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
    home = HOME / "go"
    sources = sorted(path for path in (HERE / "go").rglob("*") if path.is_file())
    once(home, sources, lambda: provide.go("build", "-mod=readonly", "-buildvcs=false", "-o", f"{home}/", "./...", cwd=HERE / "go"))
    return home


@functools.cache
def java():
    """The path of classes."""
    program("javac")
    program("mvn")
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
