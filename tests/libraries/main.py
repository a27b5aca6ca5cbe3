"""Runs libraries that use Redis against a server, and writes the table of docs/compatibility.md.

Without --host each library gets a server of its own: DURAMEN_TEST_BINARY, or with
DURAMEN_TEST_PEER=redis-server a Redis, to show that the programs are right.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CALLER = pathlib.Path.cwd()
# The other tests run here too, and their environment names files from here.
os.chdir(HERE.parent)
sys.path[:0] = [str(HERE), str(HERE.parent)]

import redis  # noqa: E402

import catalogue  # noqa: E402
import clients  # noqa: E402
import harness  # noqa: E402
import keep  # noqa: E402
import programs  # noqa: E402
import suites  # noqa: E402
import tables  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(prog="run", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="libraries whose name contains this; all if missing")
    parser.add_argument("--host", help="use this server, which must be empty, and not one of its own for each library")
    parser.add_argument("--port", type=int, default=6379)
    into = "replace the table of this page; it keeps the latest results of libraries that do not run now"
    parser.add_argument("--into", type=pathlib.Path, metavar="FILE", help=into)
    parser.add_argument("--suites", choices=("also", "only", "no"), default="also", help="test suites of libraries")
    parser.add_argument("--list", action="store_true", help="print the names")
    given = parser.parse_args()
    if given.into and given.host:
        parser.error("--into shows results against Duramen: it takes no --host")
    if given.into:
        given.into = CALLER / given.into
    return given


def chosen(names, wanted):
    return [name for name in names if not wanted or any(part.lower() in name.lower() for part in wanted)]


@contextlib.contextmanager
def server(given):
    """Host and port of an empty server."""
    if given.host:
        with redis.Redis(given.host, given.port) as client:
            if client.info("keyspace"):
                sys.exit(f"the server {given.host}:{given.port} has keys: the libraries would change them")
            yield given.host, given.port
            client.flushall()
        return
    with tempfile.TemporaryDirectory(prefix="duramen-libraries-") as folder, harness.Server(folder, threads=2) as own:
        yield "127.0.0.1", own.port


def run_programs(given):
    results = {}
    for library in catalogue.LIBRARIES:
        if chosen([library.name], given.names):
            with server(given) as (host, port):
                results[library.name] = result = programs.run(library, host, port)
            print(tables.line(library.name, result), flush=True)
    return results


def main():
    given = arguments()
    if given.list:
        print("\n".join([*clients.NAMES, *(library.name for library in catalogue.LIBRARIES), *suites.NAMES]))
        return
    of_clients = {}
    wanted = chosen(clients.NAMES, given.names)
    if wanted and not given.host and given.suites != "only":
        of_clients = {name: result for name, result in clients.run().items() if name in wanted}
        for name, result in of_clients.items():
            print(tables.line(name, result), flush=True)
    of_programs = run_programs(given) if given.suites != "only" else {}
    of_suites = {}
    if not given.host and given.suites != "no":
        names = chosen(suites.NAMES, given.names)
        # They wait most of the time.
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for name, suite in zip(names, pool.map(suites.run, names)):
                of_suites[name] = suite
                print(tables.suite_line(name, suite), flush=True)
    rows = {**of_clients, **of_programs}
    if not rows and not of_suites:
        sys.exit(f"no library is named so: {' '.join(given.names)}")
    if not given.host:
        kept_rows, kept_suites = keep.results(rows, of_suites)
        if given.into:
            tables.put(given.into, kept_rows, kept_suites)
    bad = [name for name, result in rows.items() if result.verdict == "fail"]
    bad += [f"the suite of {name}" for name, suite in of_suites.items() if suite.is_bad()]
    skipped = [name for name, result in rows.items() if result.verdict == "skip"]
    skipped += [name for name, suite in of_suites.items() if suite.why_not]
    passed = len(rows) + len(of_suites) - len(bad) - len(skipped)
    for name in bad:
        print(f"failed: {name}")
    print(f"{passed} passed, {len(bad)} failed, {len(skipped)} skipped")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
