"""The text that ddrun writes to one stream, as lines of ranks.

Before a line of a rank ddrun writes a label, and before a task's answer the rank writes a line with a mark and the task's
number. Both are random for each job, so that nothing that is printed can be taken for one.
"""

import os

LONGEST = 1 << 19  # bytes of a line; a longer one is cut


class Marks:
    """What a job's labels and marks are."""

    def __init__(self):
        word = os.urandom(8).hex()
        self.label, self.mark = f"\x02{word}", f"\x1e{word}"
        self.template = f"{self.label}${{rank}}{self.label}"  # of --log-line-prefix-template


class Splitter:
    """Whole lines, and pieces that end with a carriage return: (rank or None, text in bytes, number of a task or None)."""

    def __init__(self, marks):
        self.label, self.mark = marks.label.encode(), marks.mark.encode()
        self.pending, self.returned, self.last = bytearray(), False, None
        self.cut = None  # the rank of a line whose beginning was cut off

    def feed(self, chunk):
        if b"\n" not in chunk and b"\r" not in chunk and len(self.pending) < LONGEST:
            self.pending += chunk
            self.returned = False
            return []
        text, lines = bytes(self.pending + chunk), []
        if self.returned and text.startswith(b"\n"):  # of the rank whose carriage return was at the end
            lines.append((self.last, b"\n", None))
            text = text[1:]
        *ended, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\r\n").split(b"\n")
        lines += [self.line(line if line.endswith(b"\r") else line + b"\n") for line in ended]
        if len(rest) >= LONGEST:
            at = len(rest) - next((count for count in (1, 2, 3) if rest[-count] >= 0xC0), 0)  # between two characters of UTF-8
            lines.append(self.line(rest[:at] + b"\n"))
            self.cut, rest = lines[-1][0], rest[at:]
        self.pending, self.returned = bytearray(rest), text.endswith(b"\r")
        self.last = lines[-1][0] if lines else self.last
        return lines

    def end(self):
        """What came without a newline."""
        rest, self.pending = bytes(self.pending), bytearray()
        return [self.line(rest)] if rest else []

    def line(self, text):
        stamp, _, labelled = text.partition(self.label)  # stamp: of --timestamps
        rank, label, rest = labelled.partition(self.label)
        if self.cut is not None:
            stamp, rank, label, rest, self.cut = b"", b"%d" % self.cut, True, text, None
        if not (label and rank.isdigit() and len(rank) < 10):
            return None, text, None
        said, mark, number = rest.partition(self.mark)
        if mark and number.rstrip().isdigit() and len(number) < 20:
            return int(rank), stamp + said + b"\n" if said else b"", int(number)
        return int(rank), stamp + rest, None
