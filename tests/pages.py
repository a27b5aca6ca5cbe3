"""Runs the commands that a page of the documentation shows, in order, as a reader would, and
compares their output.

A page's fenced blocks have this meaning:

- In a block with lines that begin with `$ `, each of them is a command, and the lines below it are
  its output. A command without such lines only has to succeed.
- Lines that begin with a prompt of redis-cli (`127.0.0.1:6379> `) go to one redis-cli per page,
  which stays open.
- Every other block is a list of commands.
- `…` stands for any text; alone on a line, for any lines.
- A command that prints a line `ready …` is a server: it runs until the page ends. `PID` is one of
  its `pids=`: that of the server which a reply named last (`MOVED`), else the first.

Comments right above a block give special instructions:

- `<!-- test: skip: REASON -->`: it is not run.
- `<!-- test: file NAME -->`: it is the content of a file.
- `<!-- test: stop -->`: another terminal, and no earlier process runs any more.
- `<!-- test: before COMMAND -->`: the reader has done this already.
- `<!-- test: serve ARGUMENTS -->`: a server with these arguments runs, which the page does not show.
- `<!-- test: on ADDRESS … -->`: it is run on each of these machines; the block names the first.
- `<!-- test: with A=B … -->`: B is small enough for a test, A is the real value.

Machines are network namespaces, so ports are those of the page. Folders of the whole machine are
inside the test's own.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import select
import signal
import subprocess
import time

import harness
import provide
import reaper

ROOT = pathlib.Path(__file__).parent.parent

# Folders of the machine that a page may write to; each is replaced by one of the test.
FOLDERS = ("/backup", "/etc/duramen", "/mnt/ssd", "/usr/local", "/var/lib")
# Those of them that each machine has separately.
OWN_FOLDERS = ("/var/lib",)

PROMPT = re.compile(r"^[0-9.]+:[0-9]+(\(TX\))?> (?P<command>.*)$")
ADDRESS = re.compile(r"\b10\.0\.0\.[0-9]+\b")

# Longest wait for anything.
WAIT_S = harness.PATIENCE_S


@dataclasses.dataclass
class Block:
    page: str
    line: int
    lines: list
    directives: list

    def directive(self, name):
        """The text behind its name; None if it is missing."""
        for text in self.directives:
            word, _, rest = text.partition(" ")
            if word.rstrip(":") == name:
                return rest.strip()
        return None

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(page):
    """All fenced blocks of a page."""
    found, directives, current, is_rust = [], [], None, False
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if is_rust or line == "```rust":
            is_rust = line != "```"  # the compiler's own tests read those
        elif current is not None:
            if line.startswith("```"):
                found.append(current)
                current = None
            else:
                current.lines.append(line)
        elif line.startswith("```"):
            current = Block(page, number + 1, [], directives)
            directives = []
        elif match := re.fullmatch(r"<!-- test: (.*) -->", line):
            directives.append(match[1])
        elif line.strip():
            assert not directives, f"{page}:{number}: a test's comment stands right above its block"
    assert current is None, f"{page}: a block without an end"
    return found


def steps(block):
    """Its commands: (kind, command, lines shown below it)."""
    found = []
    is_console = any(line.startswith("$ ") or PROMPT.match(line) for line in block.lines)
    for line in block.lines:
        prompt = PROMPT.match(line)
        if found and found[-1][1].endswith("\\") and not found[-1][2]:
            kind, command, shown = found[-1]
            found[-1] = (kind, command[:-1] + line.strip(), shown)
        elif prompt:
            found.append(("redis", prompt["command"], []))
        elif is_console and not line.startswith("$ "):
            assert found, f"{block}: what prints this? {line}"
            found[-1][2].append(line)
        elif line.strip():
            found.append(("shell", line.removeprefix("$ "), []))
    return found


def matches(shown, printed):
    """Whether the printed lines match the lines of the page."""

    def of(line):
        if line.strip() == "…":
            return "(?:.*\n)*?"
        return ".*".join(map(re.escape, line.rstrip().split("…"))) + "\n"

    text = "".join(line.rstrip() + "\n" for line in printed)
    return re.fullmatch("".join(map(of, shown)), text) is not None


def lines_of(printed):
    """Whole lines of redis-cli, without the time that it prints for a slow command."""
    lines = printed.decode().split("\n")[:-1]
    return [line for line in lines if not re.fullmatch(r"\([0-9.]+s\)", line)]


class Machine:
    """The place where commands run: a namespace, a shell's variables and folder, and the machine's
    own folders."""

    def __init__(self, reader, host, name):
        self.reader = reader
        self.host = host
        self.name = name
        self.new_shell()

    def new_shell(self):
        self.folder = self.reader.work
        self.variables = dict(self.reader.variables)

    def place(self, text):
        """The text with this machine's folders and the namespaces' addresses."""
        for folder in FOLDERS:
            own = self.reader.root / self.name if folder in OWN_FOLDERS else self.reader.root
            text = re.sub(rf"(?<![\w/.]){folder}(?=[/\s\"',)]|$)", f"{own}{folder}", text)
        return ADDRESS.sub(lambda match: self.reader.address(match[0]), text)


class Service:
    """A server that a page started."""

    def __init__(self, process, output, ready):
        self.process = process
        self.output = output
        self.ready = dict(word.split("=", 1) for word in ready.split()[1:])

    def stop(self):
        """Ctrl-C, which reaches all processes of the shell."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Reader:
    """A reader who runs the commands of pages."""

    def __init__(self, root, network):
        self.root = root
        self.network = network
        self.work = root / "work"
        self.programs = root / "programs"
        self.services = []
        self.redis = None
        self.redis_arguments = []
        self.commands = 0
        # The address that a reply named last.
        self.moved = None
        self.slowest = (0.0, "")
        self.prepare()
        self.machines = {"10.0.0.1": Machine(self, network.hub, "hub")}

    def prepare(self):
        for folder in (self.work, self.programs, *(self.root / name.strip("/") for name in FOLDERS)):
            folder.mkdir(parents=True)
        # The content of the repository, as seen from its root.
        for name in ("scripts", "crates", "heap", "Cargo.toml"):
            (self.work / name).symlink_to(ROOT / name)
        (self.programs / "duramen").symlink_to(harness.BINARY)
        # As on a terminal.
        self.program("redis-cli", f'exec {provide.program("redis-cli")} --no-raw "$@"')
        for name in ("curl", "openssl", "pkg-config"):
            provide.program(name)
        # The programs are built already.
        built = pathlib.Path(harness.BINARY).parent
        target = self.root / "target"
        self.program(
            "cargo",
            f"""mkdir -p {target}/release
case "$*" in
"build --release --package duramen-cli --bin duramen") ln -sf {harness.BINARY} {target}/release/duramen ;;
"build --release --package duramen-alloc") ln -sf {built}/libduramen_alloc.so {built}/libduramen_alloc.a {target}/release/ ;;
*) echo "cargo $*: not by these pages" >&2; exit 64 ;;
esac""",
        )
        self.program("ldconfig", "exit 0")  # programs find the library by a variable, because it is not in /usr/local
        local = self.root / "usr/local"
        self.variables = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": str(self.root),
            "CARGO_TARGET_DIR": str(target),
            "PKG_CONFIG_PATH": f"{local}/lib/pkgconfig",
            "LD_LIBRARY_PATH": f"{local}/lib",
            reaper.MARK: os.environ.get(reaper.MARK, ""),
            # Small, if the page does not set a size.
            "DURAMEN_MEMORY": "64mb",
        }

    def program(self, name, text):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def address(self, address):
        return self.machine(address).host.address

    def machine(self, address):
        if address not in self.machines:
            number = int(address.rsplit(".", 1)[1])
            host = self.network.host(f"host{number}", number)
            self.machines[address] = Machine(self, host, f"host{number}")
            (self.root / f"host{number}/var/lib").mkdir(parents=True)
        return self.machines[address]

    def read(self, page):
        """Runs everything that a page shows; returns the blocks that it did not run, with the
        reasons."""
        (self.root / "hub/var/lib").mkdir(parents=True, exist_ok=True)
        skipped = []
        for block in blocks(page):
            if (reason := block.directive("skip")) is not None:
                skipped.append((page, block.lines[0], reason))
                continue
            if block.directive("stop") is not None:
                self.stop()
            self.prepare_for(block)
            if (name := block.directive("file")) is not None:
                self.write(name, block)
            else:
                self.run_block(block)
        self.close_redis()
        return skipped

    def prepare_for(self, block):
        machine = self.machines["10.0.0.1"]
        for text in block.directives:
            word, _, rest = text.partition(" ")
            if word == "before":
                self.run_shell(block, machine, machine.place(rest), [])
            if word == "serve":
                self.run_shell(block, machine, machine.place(f"duramen serve {rest}"), ["…", "ready …"])

    def write(self, name, block):
        machine = self.machines["10.0.0.1"]
        for address in ADDRESS.findall("\n".join(block.lines)):
            self.machine(address)
        path = machine.folder / machine.place(name)
        # Folders of a machine are filled in when the file is used.
        text = "\n".join(block.lines) + "\n"
        path.write_text(text)
        path.with_name(path.name + ".page").write_text(text)
        self.fill(machine, path)

    def fill(self, machine, path):
        text = path.with_name(path.name + ".page").read_text()
        path.write_text(machine.place(text))

    def run_block(self, block):
        addresses = (block.directive("on") or "10.0.0.1").split()
        exchanges = dict(pair.split("=") for pair in (block.directive("with") or "").split())
        first = addresses[0]
        named = [*exchanges, *([first] if block.directive("on") else [])]
        assert all(word in "\n".join(block.lines) for word in named), f"{block}: {named}"
        for address in addresses:
            machine = self.machine(address)
            for path in (self.root / "etc/duramen").glob("*.page"):
                self.fill(machine, path.with_suffix(""))
            for kind, command, shown in steps(block):
                command = command.replace(first, address) if len(addresses) > 1 else command
                for ours, small in exchanges.items():
                    command = command.replace(ours, small)
                self.commands += 1
                began = time.monotonic()
                if kind == "redis":
                    self.run_redis(block, command, shown)
                else:
                    self.run_shell(block, machine, machine.place(command), [machine.place(line) for line in shown])
                self.slowest = max(self.slowest, (time.monotonic() - began, command))

    def run_shell(self, block, machine, command, shown):
        if command.split("#")[0].strip() == "redis-cli" and not shown:
            self.close_redis()
            return
        if "PID" in command:
            up = [service.ready for service in self.services if "pids" in service.ready][-1]
            servers = up["resp"].split(",")
            number = servers.index(self.moved) if self.moved in servers else 0
            command = re.sub(r"\bPID\b", up["pids"].split(",")[number], command)
        state = self.root / "state"
        script = f"cd {machine.folder}\n{command}\ncode=$?\npwd > {state}.folder\nenv -0 > {state}.variables\nexit $code\n"
        output = self.root / f"output-{self.commands}"
        with open(output, "wb") as file:
            process = subprocess.Popen(
                [*machine.host.prefix, "bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=machine.variables,
                process_group=0,
            )
        ready = self.ended_or_ready(block, command, process, output)
        printed = output.read_text(errors="replace").splitlines()
        for line in printed:
            self.moved = match[1] if (match := re.search(r"MOVED [0-9]+ (\S+)", line)) else self.moved
        said = f"{block}: {command}\nprinted\n" + "\n".join(printed) + "\nand the page shows\n" + "\n".join(shown)
        if ready:
            self.services.append(Service(process, output, ready))
            printed = printed[: printed.index(ready) + 1]
        else:
            assert process.returncode == 0 or (shown and shown[0].startswith(("duramen: ", "(error)"))), said
            machine.folder = pathlib.Path(pathlib.Path(f"{state}.folder").read_text().strip())
            entries = pathlib.Path(f"{state}.variables").read_text().split("\0")
            machine.variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        assert not shown or matches(shown, printed), said

    def ended_or_ready(self, block, command, process, output):
        """The line of a server that is ready; None for a command that has ended."""
        deadline = time.monotonic() + 2 * WAIT_S
        while True:
            code = process.poll()
            for line in output.read_text(errors="replace").splitlines():
                if line.startswith("ready ") and code is None:
                    return line
            if code is not None:
                return None
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise AssertionError(f"{block}: {command}\ndoes not end, and printed\n{harness.tail(output)}")
            time.sleep(0.02)

    def run_redis(self, block, command, shown):
        if self.redis is None:
            hub = self.machines["10.0.0.1"]
            self.redis = subprocess.Popen(
                [*hub.host.prefix, "redis-cli"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=hub.variables,
            )
        self.redis.stdin.write(command.encode() + b"\n")
        self.redis.stdin.flush()
        printed = b""
        deadline = time.monotonic() + WAIT_S
        while len(lines_of(printed)) < len(shown) and time.monotonic() < deadline:
            readable, _, _ = select.select([self.redis.stdout], [], [], 0.1)
            if readable:
                piece = os.read(self.redis.stdout.fileno(), 4096)
                if not piece:
                    break
                printed += piece
        assert matches(shown, lines_of(printed)), f"{block}: {command}\nprinted\n{printed.decode()}\nand the page shows\n" + "\n".join(shown)

    def close_redis(self):
        """Checks that it printed nothing that the page does not show."""
        if self.redis is None:
            return
        redis, self.redis = self.redis, None
        rest, _ = redis.communicate(timeout=WAIT_S)
        assert lines_of(rest) == [], f"redis-cli also printed {rest!r}"

    def stop(self):
        """Ends all servers; a new terminal on each machine."""
        self.close_redis()
        for service in reversed(self.services):
            with contextlib.suppress(ProcessLookupError):
                service.stop()
        self.services = []
        for machine in self.machines.values():
            machine.new_shell()

    def end(self):
        """Ends everything, whatever happened."""
        if self.redis:
            self.redis.kill()
            self.redis.wait()
            self.redis = None
        self.stop()
