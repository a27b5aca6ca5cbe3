"""The test suites that libraries ship in their packages, unchanged, against a server on port 6379.

suites.txt lists the tests that fail, each with the reason; any other failure is an error, and so is
a line of the list that no failure matches.
"""

import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as xml

import places
import programs

HERE = pathlib.Path(__file__).resolve().parent
HOME = places.HOME / "suites"

# Longest time of one suite.
LIMIT_S = 1200


@dataclasses.dataclass
class Outcome:
    version: str = ""
    # Why it did not run; empty if it did.
    why_not: str = ""
    passed: int = 0
    skipped: int = 0
    # Messages by test.
    failed: dict = dataclasses.field(default_factory=dict)
    # Patterns of tests and reasons.
    listed: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def reason(self, test):
        return next((reason for pattern, reason in self.listed if re.search(pattern, test)), None)

    def reasons(self):
        return collections.Counter(self.reason(test) or "**not known**" for test in self.failed)

    def unlisted(self):
        return {test: text for test, text in self.failed.items() if self.reason(test) is None}

    def unfounded(self):
        found = self.failed
        return [pattern for pattern, _ in self.listed if not any(re.search(pattern, test) for test in found)]

    def is_bad(self):
        return bool(self.unlisted()) or not (self.why_not or self.passed)

    def add(self, test, kind, text=""):
        if kind == "pass":
            self.passed += 1
        elif kind == "skip":
            self.skipped += 1
        else:
            self.failed[test] = " ".join(text.split())[:200]


def listed(suite):
    lines = (HERE / "suites.txt").read_text().splitlines()
    fields = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return [(pattern, reason) for name, pattern, reason in fields if name == suite]


class Pytest:
    """A suite in a source distribution of a Python package."""

    def __init__(self, package, *arguments):
        self.package, self.arguments = package, arguments

    def version(self):
        code = f"import importlib.metadata as m; print(m.version('{self.package}'))"
        return places.call(python(), "-c", code).strip()

    def prepare(self):
        wanted = f"{self.package}=={self.version()}"
        folder = HOME / wanted

        def make():
            download = ("-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", folder)
            places.call(python(), *download, "--no-binary", self.package, wanted)
            [archive] = folder.glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")

        places.once(folder, [], make)
        [self.folder] = [path for path in folder.iterdir() if path.is_dir()]
        return self.folder

    def command(self, report):
        options = ("-q", "-p", "no:cacheprovider", "-W", "ignore", "--timeout", "60", "-o", "addopts=")
        return [python(), "-m", "pytest", *options, f"--junitxml={report}", *self.arguments]

    def read(self, output, report, outcome):
        read_junit(report, outcome)


class Go:
    """A suite in a Go module. A module's tests are built before, where there is a network."""

    def __init__(self, module, packages, *arguments):
        self.module, self.packages, self.arguments = module, packages, arguments

    def version(self):
        return places.version("go", self.module)

    def prepare(self):
        places.go()
        source = places.call("go", "list", "-m", "-f", "{{.Dir}}", self.module, cwd=HERE / "go").strip()
        folder = HOME / f"{self.module.replace('/', '-')}-{self.version()}"

        def make():
            shutil.copytree(source, folder, dirs_exist_ok=True)
            places.call("chmod", "-R", "u+w", folder)

        places.once(folder, [], make)
        places.call("go", "test", "-count=1", "-run", "^$", *self.packages, cwd=folder)
        return folder

    def command(self, report):
        return ["go", "test", "-count=1", "-json", f"-timeout={LIMIT_S}s", *self.arguments, *self.packages]

    def read(self, output, report, outcome):
        texts = collections.defaultdict(str)
        for line in output.splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            test = event.get("Test")
            if not test:
                continue
            if event["Action"] == "output" and "---" not in event["Output"] and "===" not in event["Output"]:
                texts[test] += event["Output"]
            elif event["Action"] in ("pass", "fail", "skip"):
                outcome.add(test, event["Action"], texts[test])


class Php:
    """A suite in Debian's source package of a PHP library."""

    def __init__(self, package, source, under, *arguments):
        self.package, self.source, self.under, self.arguments = package, source, under, arguments

    def version(self):
        return places.version("php", self.package)

    def prepare(self):
        places.debian("dpkg-dev", "phpunit", "php-mockery", "php-laravel-framework", "php-predis", "php-redis")
        folder = HOME / self.source
        places.once(folder, [], lambda: places.debian_source(self.source, folder))
        [found] = folder.glob(self.under)
        return found

    def command(self, report):
        return ["php", *(word.format(report=report, here=HERE) for word in self.arguments)]

    def read(self, output, report, outcome):
        if os.path.exists(report):
            return read_junit(report, outcome)
        texts = collections.defaultdict(str)
        for text, test in re.findall(r"^(Assertion failed.*|.*thrown.*) ?\((test\w+)\)$", output, re.MULTILINE):
            texts[test] += text
        verdict = r"^(test\w+)\s(?:(?!^test\w+\s).)*?\[(PASSED|FAILED|SKIPPED)\]"
        for test, kind in re.findall(verdict, output, re.MULTILINE | re.DOTALL):
            outcome.add(test, {"PASSED": "pass", "SKIPPED": "skip"}.get(kind, "fail"), texts[test])


def read_junit(report, outcome):
    for case in xml.parse(report).iter("testcase"):
        # PHPUnit calls a test without assertions risky, and does not fail for it.
        problems = [problem for problem in case if "RiskyTest" not in problem.get("type", "")]
        kinds = {problem.tag: problem.get("message") or problem.text or "" for problem in problems}
        test = f"{case.get('classname')}::{case.get('name')}"
        if "failure" in kinds or "error" in kinds:
            outcome.add(test, "fail", kinds.get("failure") or kinds.get("error"))
        else:
            outcome.add(test, "skip" if "skipped" in kinds else "pass")


def python():
    """The Python with the packages that the suites need in addition."""
    home = HOME / "python"
    requirements = [HERE / "python/requirements.txt", HERE / "python/suites.txt"]

    places.once(home, requirements, lambda: places.provide.environment(home, *requirements))
    return str(home / "bin/python")


RUEIDIS = "github.com/redis/rueidis"
NOT_REDIS_PY = "not onlycluster and not redismod and not ssl and not cp_integration and not multidb_integration"
LARAVEL_TESTS = "tests/Redis tests/Queue/RedisQueueIntegrationTest.php tests/Cache/RedisCacheIntegrationTest.php"
PHPUNIT = ("/usr/bin/phpunit", "--no-configuration", "--bootstrap", "{here}/php/suite.php", "--log-junit", "{report}")
SUITES = {
    "redis-py": Pytest(
        *("redis", "-m", f"{NOT_REDIS_PY} and not replica", "--ignore-glob=*test_scenario*"),
        *("--ignore-glob=*test_credentials.py", "--ignore-glob=*test_sentinel.py"),
        *("--ignore-glob=*maint_notifications_handling.py", "tests"),
    ),
    "Celery's transport (kombu)": Pytest("kombu", "t/integration/test_redis.py"),
    "RQ": Pytest("rq", "tests"),
    "huey": Pytest("huey", "-k", "not Sqlite", "huey/tests"),
    "django-redis": Pytest("django-redis", "-o", "pythonpath=tests .", "-k", "not sentinel and not cluster", "tests"),
    "asynq": Go("github.com/hibiken/asynq", ["./..."]),
    # Its other tests need servers of other kinds at ports of their own.
    "rueidis": Go(RUEIDIS, ["."], "-run", "TestSingleClientIntegration|TestNegative|TestUnblockOnCancel"),
    "rueidislock": Go(RUEIDIS, ["./rueidislock"]),
    "phpredis": Php("php-redis", "php-redis", "source/redis-5*/tests", "TestRedis.php", "--nocolors"),
    **{
        f"Laravel, {path}": Php("php-illuminate-redis", "php-laravel-framework", "source", *PHPUNIT, path)
        for path in LARAVEL_TESTS.split()
    },
}
NAMES = list(SUITES)


def run(name):
    """Brings a suite and runs it."""
    suite = SUITES[name]
    try:
        places.program("unshare")
        places.program("ip")
        outcome = Outcome(version=suite.version(), listed=listed(name))
        folder = suite.prepare()
    except places.Missing as why:
        return Outcome(why_not=str(why))
    given = {name: value for name, value in os.environ.items() if name.startswith("DURAMEN_")}
    given["PATH"] = f"{os.path.dirname(python())}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as reports:
        report = f"{reports}/report.xml"
        own_network = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
        command = [*own_network, sys.executable, f"{HERE}/inside.py", *suite.command(report)]
        start = time.monotonic()
        code, output, errors = programs.in_group(command, LIMIT_S, cwd=folder, **given)
        outcome.seconds = time.monotonic() - start
        try:
            suite.read(output, report, outcome)
        except OSError:
            outcome.failed["(outside of any test)"] = f"it ended with {code}: {(errors or output)[-300:]}"
    if code is None:
        outcome.failed["(outside of any test)"] = f"it did not end within {LIMIT_S} s"
    return outcome
