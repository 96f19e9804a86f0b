"""What docs/several-machines-failures.md and docs/ssh.md say of each failure: what it does, the message, the exit status, and
how long that takes.

    A paragraph. ... Status: 125.           what holds for the items below, up to the next paragraph
    * A fault: an effect. Message: `h2 … was lost`. Status: 1. Within: 3 s. <!-- id: one another -->
"""

import dataclasses
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGES = {"several-machines-failures.md": "# When something fails on several machines\n", "ssh.md": "\n## When something fails\n"}


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
        """The seconds in `within`, 0 if there are none."""
        return sum(float(number) for number in re.findall(r"([\d.]+) s\b", self.within))


def _pattern(text):
    return ".*".join(re.escape(part.strip()) for part in text.split("…"))


def _fields(text):
    """{label: text} of what "Message: ...", "Status: ..." and "Within: ..." say."""
    fields = dict(re.findall(r"\b(Status|Within): (.+?)\.(?= |$)", text))
    if message := re.search(r"\bMessage: ((?:`[^`]+`(?:, )?)+)\.", text):
        fields["Message"] = message[1]
    return fields


def _blocks(page):
    """The paragraphs and items from the page's heading to its end, each as one line."""
    text = (DOCS / page).read_text(encoding="utf-8").split(PAGES[page])[1]
    return [" ".join(block.split()) for block in re.split(r"\n\n|\n(?=\* )", text) if block.strip()]


def read():
    rows = {}
    for page in PAGES:
        group = {}
        for block in _blocks(page):
            if not block.startswith("* "):
                group = _fields(block)
                continue
            ids = re.fullmatch(r"\* ([^<]+) <!-- id: ([a-z0-9 -]+) -->", block)
            said = set(re.findall(r"\b(Message|Status|Within): ", block))
            if not ids or said != set(_fields(ids[1])):
                raise AssertionError(f"{page}: {block}")
            fields = {"Message": "", "Status": "", "Within": "", **group, **_fields(ids[1])}
            for name in ids[2].split():
                if name in rows:
                    raise AssertionError(f"{page}: there are two of {name}")
                rows[name] = Row(name, [_pattern(text) for text in re.findall(r"`([^`]+)`", fields["Message"])],
                                 fields["Status"], fields["Within"])
    return rows


ROWS = read()
