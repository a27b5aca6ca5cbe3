"""Starts and ends real servers, and uses RESP with them byte by byte.

Servers listen on free ports of the loopback address, write their log into a folder of the test, and
are ended by their own process id. With DURAMEN_TEST_PEER=redis-server the same tests run against
Redis, to show that they expect the behaviour of Redis and not an accident of ours; tests about
Duramen alone are marked `duramen`.
"""

import contextlib
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import provide
import reaper

BINARY = os.path.abspath(os.environ.get("DURAMEN_TEST_BINARY", "../target/debug/duramen"))
BENCH = os.path.abspath(os.environ.get("DURAMEN_TEST_BENCH", "../target/debug/duramen-bench"))
PEER = os.environ.get("DURAMEN_TEST_PEER")

# `quick`: the tests of a change while it is made, a few minutes; `full`: all tests. Tests of the
# full tier alone are marked `full`.
TIER = os.environ.get("DURAMEN_TEST_TIER") or "quick"
assert TIER in ("quick", "full"), f"DURAMEN_TEST_TIER is {TIER}: it must be quick or full"

# Longest duration of anything before a test calls it stuck, in seconds. Two shared cores are slow
# at times.
PATIENCE_S = 60

# For clusters of tests that are not about dead servers: a server that a busy machine delays for a
# moment does not count as dead. A killed one is still detected within a second, because its
# connections are refused.
CALM = ("--verdict-timeout", "3s")


def of_tier(quick, full):
    """A number of rounds, seeds or histories: that of the tier that runs."""
    return quick if TIER == "quick" else full


def rounds(seconds, least):
    """Numbers of rounds for this time. There are at least `least` of them: a test whose rounds are
    slow takes longer, and does not pass without them."""
    ends = time.monotonic() + seconds
    number = 0
    while number < least or time.monotonic() < ends:
        yield number
        number += 1


def only_full(*values, **options):
    """Parameters of a test that belong to the full tier."""
    return pytest.param(*values, marks=pytest.mark.full, **options)


def crc32c(data):
    """The checksum of all data that Duramen writes and sends."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def wait_until(condition, what, patience_s=PATIENCE_S, pause_s=0.01):
    """Polls `condition` until its result is true, and returns that result."""
    deadline = time.monotonic() + patience_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"{patience_s} s passed and still not: {what}")
        time.sleep(pause_s)


def tail(path, bytes_max=16_000):
    """The end of a log; it may be missing."""
    try:
        return pathlib.Path(path).read_text(errors="replace")[-bytes_max:]
    except OSError as error:
        return repr(error)


def content(folder):
    """The files there by name, as bytes."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def environment(additions):
    """The environment without the variables of the harness, and with `additions`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DURAMEN_")}
    return {**own, **additions}


def duramen(*arguments, variables=None, code=None, folder=None, **options):
    """Runs the program until it ends, without a terminal; returns the finished process. `code`: the
    exit code that it must have."""
    usual = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": PATIENCE_S}
    command = [BINARY, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment(variables or {}), check=False, **{**usual, **options})
    assert "panicked" not in str(done.stderr), done
    assert code in (None, done.returncode), done
    return done


def cert(*arguments, ok=True):
    """`duramen cert …`; returns its output, or the text of its refusal."""
    done = duramen("cert", *arguments)
    assert (done.returncode == 0) == ok, done
    return done.stdout if ok else done.stderr


class Duramen:
    """One server process. After a restart it has the same ports."""

    # Without a level of its own a test's server keeps its data in memory: most tests are not about
    # disks, and are faster this way. `level=None` leaves the choice to the server.
    def __init__(
        self, folder, *arguments, memory="256mb", threads=1, mode="store", environment=None, level="memory", dir=None
    ):
        self.folder = pathlib.Path(folder)
        self.arguments = [str(argument) for argument in arguments]
        self.memory = memory
        self.threads = threads
        self.mode = mode
        self.environment = environment or {}
        self.level = level
        self.dir = dir
        self.port = 0
        self.admin_port = 0
        self.process = None
        self.log_path = self.folder / f"server-{id(self)}.log"

    def command(self):
        return [
            *(BINARY, "serve", "--port", str(self.port), "--admin-port", str(self.admin_port)),
            *("--memory", self.memory, "--threads", str(self.threads), "--mode", self.mode),
            *(("--level", self.level) if self.level else ()),
            *(("--dir", str(self.dir)) if self.dir else ()),
            *self.arguments,
        ]

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env=environment(self.environment),
            )
        self.await_ready()
        return self

    def await_ready(self):
        ready = self.read_ready_line()
        self.port = port_of(ready["resp"])
        self.admin_port = port_of(ready["admin"])

    def read_ready_line(self):
        """The line `ready resp=… admin=…`, as a dictionary."""
        stdout = self.process.stdout
        text = b""
        deadline = time.monotonic() + PATIENCE_S
        while not text.endswith(b"\n"):
            readable, _, _ = select.select([stdout], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(stdout.fileno(), 1) if readable else b""
            if not chunk:
                self.kill()
                raise AssertionError(f"the server did not become ready: {text!r}\n{self.log()}")
            text += chunk
            if text.endswith(b"\n") and not text.startswith(b"ready "):
                text = b""
        return dict(word.split("=", 1) for word in text.decode().split()[1:])

    def connect(self, **options):
        return Wire(self.port, **options)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def kill(self):
        """`kill -9`."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        self.end()

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self):
        """Waits until the process is gone."""
        if not self.process:
            return None
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end\n{self.log()}") from None
        if self.process.stdout:
            self.process.stdout.close()
        self.process = None
        return code

    def rss_bytes(self, kind="VmRSS"):
        """Resident memory of the process; `RssAnon`: without its program, which is 10 MB with
        little optimisation."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {kind}")

    def resident_bytes(self):
        """Resident memory of the process, corrected to the size of the shipped program."""
        program = min(self.rss_bytes("RssFile"), PROGRAM_BYTES)
        return self.rss_bytes("RssAnon") + self.rss_bytes("RssShmem") + program

    def resident_kinds(self):
        """The parts of the resident memory, for the message of a test that fails."""
        return ", ".join(f"{kind} {self.rss_bytes(kind) / 1e6:.1f}" for kind in ("RssAnon", "RssShmem", "RssFile"))

    def info(self, section="everything"):
        """INFO as a dictionary of texts."""
        with self.connect() as wire:
            text = wire.call("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()


class Redis(Duramen):
    """A redis-server in place of Duramen."""

    def __init__(self, folder, *arguments, program=PEER, **options):
        super().__init__(folder, *arguments, **options)
        self.program = provide.redis_server() if program == "redis-server" else program

    def command(self):
        policy = "allkeys-lru" if self.mode == "cache" else "noeviction"
        return [
            *(self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)),
            *("--maxmemory", self.memory, "--maxmemory-policy", policy, "--logfile", str(self.log_path), *self.arguments),
        ]

    def start(self):
        self.port = self.port or free_port()
        return super().start()

    def await_ready(self):
        wait_until(self.answers, "redis-server answers")

    def answers(self):
        try:
            with self.connect() as wire:
                return isinstance(wire.pipeline([("PING",)]), list)
        except OSError:
            return False


Server = Redis if PEER else Duramen


def port_of(address):
    return int(address.rsplit(":", 1)[1])


# Ports from `free_port`: their users may not listen yet.
GIVEN_PORTS = set()


def free_port():
    """A free port. None of those that the system assigns to connections: a connection may take such
    a port before the server listens."""
    while True:
        port = random.randrange(10_000, 32_000)
        if port in GIVEN_PORTS:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        GIVEN_PORTS.add(port)
        return port


def lead_nowhere():
    """Gives the network of this process a way out at whose end nobody answers: an address of another
    machine is not reached then, and nothing reports that. Without a way out, the kernel does."""
    ip = provide.program("ip")
    if subprocess.run([ip, "route", "show", "default"], capture_output=True, check=True).stdout:
        return
    for words in [
        ("link", "add", "out", "arp", "off", "type", "veth", "peer", "name", "nowhere"),
        ("address", "add", "198.51.100.1/24", "dev", "out"),
        *[("link", "set", device, "up") for device in ("out", "nowhere")],
        ("route", "add", "default", "dev", "out"),
    ]:
        done = subprocess.run([ip, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"addresses of other machines are unreachable at once: `ip {' '.join(words)}`: {done.stderr.strip()}")
            return


def in_threads(count, work):
    """Runs `work(number)` in threads; raises the first error."""
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class ErrorReply(Exception):
    """An error reply of the server."""


class Closed(Exception):
    """The server closed the connection."""


def encode(*arguments):
    """One request as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        if not isinstance(argument, bytes):
            argument = str(argument).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(argument), argument))
    return b"".join(parts)


class Wire:
    """One connection, without the conveniences of a client library."""

    def __init__(self, port, timeout=PATIENCE_S, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.at = 0

    def send(self, data):
        self.socket.sendall(data)

    def call(self, *arguments):
        """Sends one command and returns its reply; raises [ErrorReply]."""
        self.send(encode(*arguments))
        return self.reply()

    def pipeline(self, commands):
        """Sends many commands at once and returns all replies, errors as values."""
        self.send(b"".join(encode(*command) for command in commands))
        return [self.reply_or_error() for _ in commands]

    def reply_or_error(self):
        try:
            return self.reply()
        except ErrorReply as error:
            return error

    def more(self):
        try:
            chunk = self.socket.recv(1 << 18)
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise Closed()
        del self.received[: self.at]
        self.at = 0
        self.received += chunk

    def line(self):
        while (end := self.received.find(b"\r\n", self.at)) < 0:
            self.more()
        line = bytes(self.received[self.at : end])
        self.at = end + 2
        return line

    def load(self, keys, value, options=()):
        """SETs all keys to one value, fast; every reply must be `+OK`."""
        tail = encode("SET", "k", value, *options).split(b"k\r\n", 1)[1]
        head = b"*%d\r\n$3\r\nSET\r\n" % (3 + len(options))
        for start in range(0, len(keys), 1000):
            some = keys[start : start + 1000]
            self.send(b"".join(b"%b$%d\r\n%b\r\n%b" % (head, len(key), key, tail) for key in some))
            replies = self.exactly(5 * len(some))
            assert replies == b"+OK\r\n" * len(some), replies.replace(b"+OK\r\n", b"")[:200]

    def exactly(self, count):
        while len(self.received) - self.at < count:
            self.more()
        data = bytes(self.received[self.at : self.at + count])
        self.at += count
        return data

    def reply(self):
        """One reply of RESP2 or RESP3: bytes, int, float, bool, None, list, dict or set."""
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise ErrorReply(rest.decode(errors="replace"))
        if kind in b":(":
            return int(rest)
        if kind == b"$" or kind == b"=":
            count = int(rest)
            return None if count < 0 else self.exactly(count + 2)[:-2]
        if kind in b"*>~":
            count = int(rest)
            return None if count < 0 else [self.reply_or_error() for _ in range(count)]
        if kind == b"%":
            return {self.reply(): self.reply_or_error() for _ in range(int(rest))}
        if kind == b"_":
            return None
        if kind == b",":
            return float(rest)
        if kind == b"#":
            return rest == b"t"
        raise AssertionError(f"not RESP: {line!r}")

    def raw_reply(self):
        """The bytes of one reply, unchanged."""
        line = self.line()
        raw = line + b"\r\n"
        kind, rest = line[:1], line[1:]
        if kind in b"$=" and rest != b"-1":
            raw += self.exactly(int(rest) + 2)
        elif kind in b"*>~%" and rest != b"-1":
            raw += b"".join(self.raw_reply() for _ in range(int(rest) * (2 if kind == b"%" else 1)))
        return raw

    def drain(self):
        """Reads everything until the server closes the connection."""
        data = bytes(self.received[self.at :])
        while True:
            try:
                chunk = self.socket.recv(1 << 18)
            except ConnectionError:
                return data
            if not chunk:
                return data
            data += chunk

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# Resident bytes of the program itself under load, optimised as shipped; the tests' program has 13
# MB.
PROGRAM_BYTES = 10_000_000


class Resident(threading.Thread):
    """Records the largest resident memory of a server, measured every 20 ms."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.most, self.kinds, self.done = server, 0, "", threading.Event()

    def run(self):
        while not self.done.wait(0.02):
            now = self.server.resident_bytes()
            if now > self.most:
                self.most, self.kinds = now, self.server.resident_kinds()

    def __exit__(self, *_):
        self.done.set()
        self.join()

    def __enter__(self):
        self.start()
        return self


@contextlib.contextmanager
def disk(image, place, size):
    """A file system of `size` bytes at `place`, on a loop device. Without the right to mount it,
    the test is skipped."""
    place.mkdir(exist_ok=True)
    reaper.at_the_end("umount", "-l", place)
    try:
        with open(image, "wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"") or str(error).encode()
        pytest.skip(f"cannot mount a file system here: {reason.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def frozen(place):
    """Freezes this file system meanwhile: writers wait, as on a hanging disk."""
    reaper.at_the_end("fsfreeze", "--unfreeze", place)
    subprocess.run(["fsfreeze", "--freeze", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", place], check=True)


def fill(folder, left):
    """Fills the room there except for `left` bytes; returns the file, which is to be removed again.
    """
    ballast = folder / "ballast"
    with open(ballast, "wb") as file:
        while (free := shutil.disk_usage(folder).free) > left:
            file.write(b"\0" * min(free - left, 1 << 20))
            file.flush()
            os.fsync(file.fileno())
    return ballast


@contextlib.contextmanager
def loop_device(image, sector_bytes=512):
    """A block device with sectors of this length, whose blocks are in this file, detached again.
    Without the right to make one, the test is skipped."""
    command = ("losetup", "--find", "--show", "--sector-size", str(sector_bytes), image)
    try:
        made = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no loop device with sectors of {sector_bytes} bytes: {getattr(error, 'stderr', '') or error}")
    device = made.stdout.strip()
    reaper.at_the_end("sh", "-c", 'losetup --noheadings --output NAME --associated "$0" | xargs -r losetup --detach', image)
    try:
        yield device
    finally:
        subprocess.run(("losetup", "--detach", device), check=True)


class Stopwatch:
    """The time that `seconds` tells is that of the clock, without the time in which one thread of
    the server, or this one, was ready to run while other programs had the processors. So a bound on
    it says how long the server makes a client wait, whatever else the machine does."""

    def __init__(self, server):
        self.tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
        self.restart()

    def restart(self):
        self.delays, self.own, self.began = self.delays_s(), delay_s("/proc/thread-self/schedstat"), time.monotonic()

    def delays_s(self):
        return {task.name: delay_s(task / "schedstat") for task in self.tasks.iterdir()}

    def hindered_s(self):
        """The longest that one thread of the server was kept from running since then."""
        delays = [delay - self.delays.get(task, 0) for task, delay in self.delays_s().items()]
        return max([0.0, *delays])

    def seconds(self):
        took = time.monotonic() - self.began
        own = delay_s("/proc/thread-self/schedstat") - self.own
        return max(0.0, took - own - self.hindered_s())


def delay_s(path):
    """For how long a thread was ready to run and did not, in seconds; 0: it has ended."""
    try:
        return int(pathlib.Path(path).read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0
