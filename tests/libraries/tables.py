"""The tables of docs/compatibility.md, and the lines that the command prints."""

import html

import catalogue

BEGIN = "<!-- Written by `tests/libraries/run --into docs/compatibility.md`. -->"
END = "<!-- End of what it wrote. -->"


def line(name, result):
    words = {"pass": "passes", "fail": "FAILS", "skip": "not run"}[result.verdict]
    head = f"{name} {result.version}: {words}, {result.seconds:.1f} s"
    rest = [*(f"    {what}" for what in result.done), *(f"    {text}" for text in result.text.splitlines()[-15:])]
    return "\n".join([head, *rest])


def suite_line(name, suite):
    if suite.why_not:
        return f"the suite of {name}: not run: {suite.why_not}"
    head = (
        f"the suite of {name} {suite.version}: {suite.passed} passed, {len(suite.failed)} failed, "
        f"{suite.skipped} skipped, {suite.seconds:.0f} s"
    )
    unknown = [f"    not listed: {test}: {text}" for test, text in suite.unlisted().items()]
    gone = [f"    listed, and does not fail: {test}" for test in suite.unfounded()]
    return "\n".join([head, *unknown, *gone])


def cell(text):
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def row(name, result):
    if result.verdict == "pass":
        verdict = "passes"
    elif result.verdict == "skip":
        verdict = f"not run: {cell(result.text)}"
    else:
        lines = [part for part in result.text.splitlines() if part.strip()]
        verdict = f"**fails**: {cell(lines[-1] if lines else 'without a word')}"
    done = cell("; ".join(result.done))
    return f"| {name} | {result.version} | {done} | {verdict} | {result.seconds:.0f} |"


def suite_row(name, suite):
    if suite.why_not:
        return f"| {name} | {suite.version} | | | | not run: {cell(suite.why_not)} |"
    reasons = "; ".join(f"{count}: {cell(reason)}" for reason, count in suite.reasons().items())
    return f"| {name} | {suite.version} | {suite.passed} | {len(suite.failed)} | {suite.skipped} | {reasons} |"


def text(rows, suites):
    lines = ["| library | version | what it did | result | seconds |", "|---|---|---|---|---|"]
    lines += [row(name, result) for name, result in rows.items()]
    lines += [f"| {name} | | | not run: {why} | |" for name, why in catalogue.NOT_TO_BE_HAD.items()]
    if not suites:
        return "\n".join(lines)
    lines += ["", "Test suites that libraries ship in their packages:", ""]
    lines += ["| suite | version | passed | failed | skipped | the failed ones |", "|---|---|---|---|---|---|"]
    lines += [suite_row(name, suite) for name, suite in suites.items()]
    return "\n".join(lines)


def put(page, rows, suites):
    """Replaces what is between the two markers of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{page} lacks the markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text(rows, suites)}\n\n{END}{after}")
