"""The figures of a real member: how full it is, how long no coordinator was heard, what only grows."""

import json
import re

import pytest

import harness
from test_member import Coordinator, Member

pytestmark = pytest.mark.duramen

SILENT = "duramen_cluster_coordinator_silent_seconds"
VALUE = b"v" * 20_000


@pytest.fixture
def small(tmp_path):
    """Starts a coordinator, and two members with these flags, each with the other as its backup;
    returns the coordinator and the members."""
    running = []

    def start(*flags):
        coordinator = Coordinator(tmp_path, replicas=1).start()
        running.append(coordinator)
        for number in range(2):
            member = Member(tmp_path, number, coordinator.address)
            member.arguments += [flag.replace("{}", str(number)) for flag in flags]
            running.append(member.start())
        return coordinator, running[1:]

    yield start
    for process in reversed(running):
        process.kill()


def tool(coordinator, *words):
    return harness.duramen(*words, "--coordinator", coordinator.address, "--cluster", "t", code=0).stdout


def sample(member, name):
    """The value of a metric without labels."""
    return float(re.search(rf"(?m)^{name} (\S+)$", member.page("/metrics"))[1])


def test_a_member_tells_how_long_no_coordinator_was_heard(small):
    """A coordinator that had vanished, with its own page of metrics, caused no alert at all."""
    coordinator, (member, _) = small()
    harness.wait_until(lambda: sample(member, SILENT) < 2, "a coordinator leads")
    coordinator.kill()
    harness.wait_until(lambda: sample(member, SILENT) > 5, "nobody leads")
    # Between two readings of the page.
    before_s = sample(member, SILENT)
    shown_s = int(member.info("cluster")["duramen_coordinator_silent_ms"]) / 1000
    after_s = sample(member, SILENT)
    assert before_s - 0.001 <= shown_s <= after_s + 0.001
    coordinator.start()
    harness.wait_until(lambda: sample(member, SILENT) < 2, "it leads again")


def test_what_only_grows_is_a_counter(small):
    """Hellos that were refused and TLS connections that failed were gauges."""
    _, (member, _) = small()
    page = member.page("/metrics")
    for name in ("duramen_cluster_offences", "duramen_cluster_tls_failures"):
        assert f"# TYPE {name}_total counter\n" in page, re.findall(f".*{name}.*", page)
    # Its log is on the other member's disk.
    assert sample(member, "duramen_log_segments") == 0
    help_text = re.search(r"(?m)^# HELP duramen_log_segments (.*)$", page)[1]
    assert "0 of a member of a cluster" in help_text, help_text
    was = sample(member, "duramen_cluster_offences_total")
    with harness.Wire(member.native_port) as stranger:
        stranger.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
        stranger.drain()
    harness.wait_until(lambda: sample(member, "duramen_cluster_offences_total") == was + 1, "it is counted")


@pytest.mark.parametrize("flags", [(), ("--flash-file=flash-{}", "--flash-size=128mb")], ids=["memory", "flash"])
def test_a_member_refuses_writes_when_its_figure_says_full(small, flags):
    """The figure was the share of memory that holds live data, which is not the limit of writes,
    and with flash says nothing of it. Now metrics, INFO and /memory have one figure."""
    coordinator, members = small(*flags)
    tool(coordinator, "table", "create", "db0", "--servers", "1")

    def owner():
        owners = [member for member in members if member.info("cluster")["duramen_tablets_served"] == "1"]
        return owners[0] if owners else None

    member, number, middle = harness.wait_until(owner, "one of them serves"), 0, None
    with member.connect() as wire:
        while True:
            replies = wire.pipeline([("SET", f"key:{number + n}", VALUE) for n in range(20)])
            number += 20
            errors = [str(reply) for reply in replies if reply != b"OK"]
            if errors:
                assert errors[0].startswith("OOM"), errors
                break
            if middle is None and sample(member, "duramen_utilization_ratio") > 0.5:
                middle = number
        assert 0.4 < middle / number < 0.6, f"half full with {middle} of {number} values"
        ratio = sample(member, "duramen_utilization_ratio")
        assert 0.97 < ratio < 1.05
        live, limit = (sample(member, f"duramen_{name}_bytes") for name in ("live", "live_limit"))
        if flags:
            assert limit > 1.5 * sample(member, "duramen_segment_budget_bytes"), "flash counts"
        info = {name: float(text) for name, text in member.info("memory").items() if name.startswith("duramen_util")}
        shown = [live / limit, info["duramen_utilization"], json.loads(member.page("/memory"))["utilization"]]
        assert all(abs(one - ratio) < 0.02 for one in shown), (ratio, shown)
