"""Flips bits in the memory of a running process, through /proc/PID/mem: no debugger is needed, and
any build can be tested. It needs the rights of a parent, or of root."""

PIECE_BYTES = 16 << 20


def mappings(pid):
    """Address ranges that the process can write and that are no file."""
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            if fields[1].startswith("rw") and fields[4] == "0" and len(fields) == 5:
                first, last = (int(end, 16) for end in fields[0].split("-"))
                yield first, last


def resident(pid, first, last):
    """The parts of a range that are in memory: most of the log's region never was."""
    page = 4096
    with open(f"/proc/{pid}/pagemap", "rb") as entries:
        entries.seek(first // page * 8)
        at = first
        while at < last:
            count = min(1 << 20, (last - at) // page)
            read = entries.read(8 * count)
            if not read:
                return
            begin = None
            for n in range(len(read) // 8):
                is_there = read[8 * n + 7] & 0x80
                if is_there and begin is None:
                    begin = at + n * page
                elif not is_there and begin is not None:
                    yield begin, at + n * page
                    begin = None
            if begin is not None:
                yield begin, at + len(read) // 8 * page
            at += len(read) // 8 * page


def places(pid, pattern):
    """Addresses of these bytes."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for first, last in mappings(pid):
            for begin, end in resident(pid, first, last):
                for at in range(begin, end, PIECE_BYTES):
                    memory.seek(at)
                    piece = memory.read(min(PIECE_BYTES + len(pattern), end - at))
                    found = piece.find(pattern)
                    while found >= 0:
                        yield at + found
                        found = piece.find(pattern, found + 1)


def flip(pid, address, bit):
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        byte = memory.read(1)[0]
        memory.seek(address)
        memory.write(bytes([byte ^ 1 << bit]))


def flip_in_value(pid, key, value, at, bits):
    """Flips bits of one byte of the value, `at` bytes from its start, in each entry that has this
    key and value: in the log, and in buffers on the way to a disk. Returns their number."""
    found = list(places(pid, key + value))
    for address in found:
        for bit in bits:
            flip(pid, address + len(key) + at, bit)
    return len(found)
