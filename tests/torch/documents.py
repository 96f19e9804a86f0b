"""Runs what a page of docs/ shows.

    ```python train.py      a file: anything with a name behind the language
    ```console              lines behind "$ " are commands ("> " goes on), those below them what they print

The files and commands of a page share one folder, in which they are made and run in order. In what is printed (stdout
and stderr together), `...` stands for any text in a line, and for any lines if it stands alone. A command has to succeed
unless the next one is `echo $?`. All other blocks are left alone.
"""
import dataclasses
import os
import pathlib
import re

from harness import DDRUN, VENV, run

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


@dataclasses.dataclass
class Command:
    line: int
    text: str
    expected: list


@dataclasses.dataclass
class File:
    line: int
    name: str
    text: str


def parse(page):
    """Files and commands of a page, in order."""
    found, block, language, name, start = [], None, "", "", 0
    for number, line in enumerate((DOCS / page).read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            if block is not None:
                block.append((number, line))
        elif block is None:
            language, _, name = line[3:].strip().partition(" ")
            block, start = [], number
        else:
            if name:
                found.append(File(start, name, "".join(f"{text}\n" for _, text in block)))
            elif language == "console":
                found += commands(page, block)
            block = None
    return found


def commands(page, block):
    found = []
    for number, line in block:
        if line.startswith("$ "):
            found.append(Command(number, line[2:], []))
        elif not found:
            raise AssertionError(f"{page}:{number}: a console block begins with a command")
        elif line.startswith("> ") and not found[-1].expected:
            found[-1].text += "\n" + line[2:]
        else:
            found[-1].expected.append(line)
    return found


def pattern(expected):
    text = ""
    for line in expected:
        if line.strip() == "...":
            text += r"(?:.*\n)*?"
        else:
            text += ".*".join(re.escape(part) for part in line.split("...")) + r"\n"
    return text


def write_files(page, folder):
    """Only the files of a page; their names."""
    files = [part for part in parse(page) if isinstance(part, File)]
    for file in files:
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.name).write_text(file.text, encoding="utf-8")
    return [file.name for file in files]


def run_page(page, folder):
    """Makes and runs everything; returns how many commands that were."""
    programs = folder / ".programs"
    programs.mkdir()
    for program in sorted(pathlib.Path(DDRUN).parent.glob("ddrun-*")):
        (programs / program.name).symlink_to(program)
    (programs / "ddrun").symlink_to(DDRUN)
    parts = parse(page)
    env = {"PATH": f"{programs}:{VENV / 'bin'}:{os.environ['PATH']}"}
    status, count = 0, 0
    for index, part in enumerate(parts):
        if isinstance(part, File):
            (folder / part.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / part.name).write_text(part.text, encoding="utf-8")
            continue
        result = run(["bash", "-c", f"exec 2>&1; (exit {status}); {part.text}"], cwd=folder, env=env, timeout=120)
        status, count = result.code, count + 1
        following = parts[index + 1] if index + 1 < len(parts) else None
        told = isinstance(following, Command) and following.text.startswith("echo $?")
        where = f"docs/{page}:{part.line}: {part.text}"
        if status != 0 and not told:
            raise AssertionError(f"{where}\nexit status {status}\n{result.out}")
        out = result.out if not result.out or result.out.endswith("\n") else result.out + "\n"
        if not re.fullmatch(pattern(part.expected), out):
            expected = "".join(f"{line}\n" for line in part.expected)
            raise AssertionError(f"{where}\n--- the page says\n{expected}--- it printed\n{out}")
    return count
