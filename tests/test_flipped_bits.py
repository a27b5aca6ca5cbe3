"""One bit flips in the memory of a real server. The cleaner copied the entry, the good copy on disk
was freed, and no start accepted the store any more: 20,001 keys were gone for one bit."""

import pytest

import flips

pytestmark = [pytest.mark.duramen, pytest.mark.full]

KEYS = 20_000
FLIPPED = b"the-key-with-the-bit"
VALUE = b"0123456789abcdef" * 40
ROUNDS = 12


def fill(wire, round_):
    wire.load([b"k%d" % n for n in range(KEYS)], b"%04d" % round_ * 160)


def check(wire, round_):
    assert wire.call("DBSIZE") == KEYS + 1
    assert wire.call("GET", FLIPPED) == VALUE
    for at in range(0, KEYS, 1000):
        keys = [b"k%d" % n for n in range(at, at + 1000)]
        assert wire.call("MGET", *keys) == [b"%04d" % round_ * 160] * 1000


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_costs_no_key(start, tmp_path, bit):
    """The recipe of the report: a bit of one value, overwrites of other keys until everything was
    cleaned, kill -9, start."""
    server = start("--wal-size", "16mb", level=None, dir=tmp_path / "data", memory="64mb")
    with server.connect() as wire:
        fill(wire, 0)
        wire.call("SET", FLIPPED, VALUE)
        fill(wire, 1)
        assert flips.flip_in_value(server.process.pid, FLIPPED, VALUE, 100 + bit, [bit]) > 0
        for round_ in range(2, ROUNDS):
            fill(wire, round_)
    assert int(server.info("memory")["duramen_flipped_bits"]) >= 1, "nobody has met it"
    server.kill()
    server.start()
    with server.connect() as wire:
        check(wire, ROUNDS - 1)
    assert server.stop() == 0
    server.start()
    with server.connect() as wire:
        check(wire, ROUNDS - 1)
