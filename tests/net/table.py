"""The tables of docs/when-things-go-wrong.md: what each failure does, says, ends with, and how long that takes."""

import dataclasses
import pathlib
import re

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/when-things-go-wrong.md"


@dataclasses.dataclass
class Row:
    id: str
    says: list  # of regular expressions
    status: str
    within: str

    @property
    def code(self):
        """The number in `status`, where there is one."""
        found = re.search(r"\d+", self.status)
        return int(found[0]) if found else None

    @property
    def seconds(self):
        """The seconds in `within`, 0 for "at once" and the like."""
        return sum(float(number) for number in re.findall(r"([\d.]+) s\b", self.within))


def _pattern(text):
    return ".*".join(re.escape(part.strip()) for part in text.split("…"))


def read():
    rows = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        found = re.search(r"<!-- id: ([a-z0-9-]+) -->", line)
        if not found:
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or found[1] in rows:
            raise AssertionError(f"{DOCUMENT.name}: {line}")
        rows[found[1]] = Row(found[1], [_pattern(text) for text in re.findall(r"`([^`]+)`", cells[2])], cells[3], cells[4])
    return rows


ROWS = read()
