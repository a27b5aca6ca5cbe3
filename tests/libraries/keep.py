"""The latest results of each library: a table can be written without running all of them again."""

import dataclasses
import json

import catalogue
import clients
import harness
import places
import programs
import suites

# Results against Redis are not those of Duramen.
FILE = places.HOME / ("results-peer.json" if harness.PEER else "results.json")


def results(rows, of_suites):
    """Adds new results to the kept ones; returns all, of libraries and of suites, in order."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"rows": {}, "suites": {}}
    kept["rows"].update({name: dataclasses.asdict(result) for name, result in rows.items()})
    kept["suites"].update({name: dataclasses.asdict(suite) for name, suite in of_suites.items()})
    FILE.write_text(json.dumps(kept, indent=1))
    names = [*clients.NAMES, *(library.name for library in catalogue.LIBRARIES)]
    all_rows = {name: programs.Result(**kept["rows"][name]) for name in names if name in kept["rows"]}
    all_suites = {name: suites.Outcome(**kept["suites"][name]) for name in suites.NAMES if name in kept["suites"]}
    for name, suite in all_suites.items():
        suite.listed = suites.listed(name)
    return all_rows, all_suites
