"""Runs what a page shows.

    ```python train.py      a file: anything with a name behind the language; it can be executed if it begins with #!
    ```console              lines behind "$ " are commands ("> " goes on), those below them what they print
    ```                     a command on each line (one that ends in \\ goes on), which has to succeed
    ```text                 nothing to run: a picture, a form, the words of a report
    ```json, ```toml, ```yaml    is parsed; yaml only where Python has a module for it

The files and commands of a page share one folder, in which they are made and run in order. Before them, ./train,
train.py and other programs that stand for the reader's own lie there (tests/e2e/documents/files), and configs/ and
scripts/ of this tree. Hosts that ssh is asked for are this machine.

In what is printed (stdout and stderr together), `...` and `…` stand for any text in a line, and for any lines if they
stand alone. `after 12.3 s`, `pid 4703`, `0 % CPU`, `on node7`, ports of 127.0.0.1, points in time and random letters in
the names of folders stand for others of their kind, several blanks for any number of them. /tmp/ddrun-stacks-… is a file
in the run's own $TMPDIR. A command in a console block has to succeed unless the next one is `echo $?`.

Comments on the lines above a block, which a reader does not see, change how it is run:

    <!-- not run: REASON -->    it is not; the reason is printed
    <!-- needs: PROGRAM -->     only where that is in PATH; `torch`: only with the Python that has PyTorch; `/a/folder`: only
                                where that can be written
    <!-- before: COMMAND -->    a command that comes first
    <!-- ends with: 0, 3 -->    each command ends with one of these
    <!-- measured -->           numbers with a decimal point stand for any number
    <!-- any order -->          lines come in any order
    <!-- on 2 machines -->      each command so often at the same time: node0, where they meet, is the loopback. With --node-rank
                                once for each rank, the next one when the one before has printed a line; what the typed one
                                prints counts. The same command with another rank right below is of the same job
"""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import socket
import tomllib

from running import DDRUN, run

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FILES = ROOT / "tests/e2e/documents/files"

DIRECTIVE = re.compile(r"<!-- (?:(not run|needs|before|ends with): (.+)|(measured|any order)|on (\d+) machines?) -->")
SHELLS = ("", "sh", "console")
PARSERS = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load if yaml else str}


@dataclasses.dataclass
class Block:
    """What stands between two fences. `place`: page and line."""
    place: str
    language: str
    name: str
    lines: list  # of (place, text)
    orders: dict  # what comments say of it

    @property
    def text(self):
        return "".join(f"{text}\n" for _, text in self.lines)


@dataclasses.dataclass
class Command:
    place: str
    text: str
    expected: list = None  # lines; None: anything


def parse(page):
    """The blocks of a page, a path, in order. Of what is no Markdown, its examples."""
    title = os.path.relpath(page, ROOT)
    if page.suffix == ".toml":  # the comment at its head
        return [Block(title, "", "", examples(page, r"#   (ddrun .*?)(?:   +# .*)?$"), {})]
    if page.suffix == ".1":
        return [Block(title, "", "", examples(page, r"(ddrun .*)", ".SH EXAMPLES"), {})]
    blocks, block, orders = [], None, {}
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{title}:{number}"
        if block is not None:
            if line.startswith("```"):
                blocks.append(block)
                block = None
            else:
                block.lines.append((place, line))
        elif line.startswith("```"):
            language, _, name = line[3:].strip().partition(" ")
            block, orders = Block(place, language, name, [], orders), {}
        elif found := DIRECTIVE.fullmatch(line):
            if found[3]:
                orders[found[3]] = True
            elif found[4]:
                orders["machines"] = int(found[4])
            else:
                orders.setdefault(found[1], []).append(found[2])
        elif line:
            if orders:
                raise AssertionError(f"{place}: the comments above belong to no block")
    if block is not None:
        raise AssertionError(f"{block.place}: the block has no end")
    return blocks


def examples(page, shown, below=None):
    """The lines of a settings file or manual page that a regular expression finds, as commands; those `below` a line."""
    found = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line == below:
            found.clear()
        elif fits := re.match(shown, line.replace("\\-", "-")):
            found.append((f"{os.path.relpath(page, ROOT)}:{number}", fits[1]))
    return found


def commands(block):
    if block.language == "console":
        found = []
        for place, line in block.lines:
            if line.startswith("$ "):
                found.append(Command(place, line[2:], []))
            elif not found:
                raise AssertionError(f"{place}: a console block begins with a command")
            elif line.startswith("> ") and not found[-1].expected:
                found[-1].text += "\n" + line[2:]
            else:
                found[-1].expected.append(line)
        return found
    found, goes_on = [], False
    for place, line in block.lines:
        if goes_on:
            found[-1].text += "\n" + line
        elif line and not line.startswith("#"):
            found.append(Command(place, line))
        goes_on = line.endswith("\\")
    return found


# What stands for others of its kind. The first that fits counts.
WILDCARDS = [(re.compile(shown), meant) for shown, meant in (
    (r"\.\.\.|…", r".*"),
    (r"\b\d+(?:\.\d+)? s\b", r"\d+(?:\.\d+)? (?:ms|s)"),
    (r"\bpid \d+", r"pid \d+"),
    (r"/tmp/ddrun-stacks-\d+-", r"/tmp/ddrun-stacks-\d+-"),
    (r"\b\d+ % CPU", r"\d+ % CPU"),
    (r"\bon node\d\b", r"on [\w.-]+"),
    (r"\[node\d:", r"\[[\w.-]+:"),
    (r"127\.0\.0\.1:\d+", r"127\.0\.0\.1:\d+"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"),
    (r"\b\d\d:\d\d:\d\d\.\d{3}", r"\d\d:\d\d:\d\d\.\d{3}"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    (r"  +", r" +"),
    (r"_(?=[a-z]*\d)[a-z0-9]{8}\b", r"_[a-z0-9]{8}"),
)]


def line_pattern(line):
    at, text = 0, ""
    while at < len(line):
        fits = [(found.start(), order, found, meant) for order, (shown, meant) in enumerate(WILDCARDS)
                if (found := shown.search(line, at))]
        if not fits:
            break
        start, _, found, meant = min(fits, key=lambda fit: fit[:2])
        text += re.escape(line[at:start]) + meant
        at = found.end()
    return text + re.escape(line[at:])


def pattern(expected):
    text = ""
    for line in expected:
        if line.strip() in ("...", "…"):
            text += r"(?:.*\n)*?"
        else:
            text += line_pattern(line) + r"\n"
    return text


def write_file(block, folder):
    path = folder / block.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(block.text, encoding="utf-8")
    path.chmod(0o755 if block.text.startswith("#!") else 0o644)


def write_files(page, folder):
    """Only the files of a page of docs/, by name."""
    for block in parse(DOCS / page):
        if block.name:
            write_file(block, folder)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def etcd(port, peers):
    """A shell's words that run one, of one member, as long as the shell lives."""
    address = f"http://127.0.0.1:{port}"
    among = f"http://127.0.0.1:{peers}"
    return (f"etcd --data-dir=$(mktemp -d) --log-level=error --listen-client-urls={address} --advertise-client-urls={address} "
            f"--listen-peer-urls={among} --initial-advertise-peer-urls={among} --initial-cluster=default={among} & "
            "trap \"kill $!\" EXIT; ")


class Page:
    """`path`: what is run; `folder`: an empty one; `venv`: that of a Python with PyTorch, None: blocks that need it are left
    out."""

    def __init__(self, path, folder, venv=None):
        self.path, self.folder, self.venv = path, folder, venv
        self.ran, self.files, self.left_out = 0, 0, []  # (place, reason)
        self.status, self.job = 0, None
        self.home = folder / ".home"
        programs = folder / ".programs"
        for made in (self.home, programs, folder / ".tmp"):
            made.mkdir()
        for program in pathlib.Path(DDRUN).parent.glob("ddrun-*"):
            (programs / program.name).symlink_to(program)
        (programs / "ddrun").symlink_to(DDRUN)
        shutil.copytree(FILES / "bin", programs, dirs_exist_ok=True)
        shutil.copytree(FILES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("bin"))
        for name in ("train", "smoke-test"):
            shutil.copy(shutil.which("echo"), folder / name)  # compiled, and content with any arguments
        for name in ("configs", "scripts"):
            (folder / name).symlink_to(ROOT / name)
        first = [str(programs)] + ([str(venv / "bin")] if venv else [])
        self.search = ":".join([*first, os.environ.get("PATH", "/usr/bin:/bin")])
        package = {"PYTHONPATH": str(ROOT / "python"), "DDRUN_PROGRAM": DDRUN, "PYTEST_PLUGINS": "ddrun_pytest"} if venv else {}
        self.env = {**package, "PATH": self.search, "HOME": str(self.home), "TMPDIR": str(folder / ".tmp"), "XDG_CONFIG_HOME": None}

    def run(self):
        blocks = parse(self.path)
        for block in blocks:
            reason = self.obstacle(block)
            if block.language in PARSERS:
                self.parse_block(block)
            if block.name and "not run" not in block.orders:
                write_file(block, self.folder)
                self.files += 1
            elif reason:
                self.left_out.append((block.place, reason))
            elif block.language == "text":
                self.check_text(block)
            elif block.language in SHELLS:
                self.run_block(block)
            elif block.language not in PARSERS:
                raise AssertionError(f"{block.place}: a block of {block.language} needs the name of a file, or a comment that "
                                     "says why it is not run")
        return self

    @staticmethod
    def parse_block(block):
        try:
            PARSERS[block.language](block.text)
        except Exception as error:
            raise AssertionError(f"{block.place}: this is no {block.language}: {error}") from error

    @staticmethod
    def check_text(block):
        for place, line in block.lines:
            if re.match(r"\$ |(?:ddrun|ddrun-allreduce|scripts/\S+|srun|mpirun) ", line):
                raise AssertionError(f"{place}: a command among text is not run: {line}")

    def obstacle(self, block):
        if "not run" in block.orders:
            return block.orders["not run"][0]
        for need in block.orders.get("needs", []):
            if need == "torch":
                if not self.venv:
                    return "needs PyTorch"
            elif need.startswith("/"):
                if not os.access(need, os.W_OK):
                    return f"{need} cannot be written"
            elif not shutil.which(need, path=self.search):
                return f"{need} is not installed"
        return None

    def run_block(self, block):
        for text in block.orders.get("before", []):
            self.run_command(Command(block.place, text), [0])
        allowed = [int(code) for code in block.orders.get("ends with", ["0"])[0].split(",")]
        found = commands(block)
        if not found:
            raise AssertionError(f"{block.place}: there is no command in this block; is it text?")
        for command, following in zip(found, [*found[1:], None]):
            told = following is not None and following.text.startswith("echo $?")
            if "measured" in block.orders:
                command.expected = [re.sub(r"\d+\.\d+", "…", line) for line in command.expected]
            if "machines" in block.orders and not command.text.startswith("echo $?"):
                self.multiply(command, block.orders["machines"])
            self.run_command(command, None if told else allowed, "any order" in block.orders)

    def multiply(self, command, machines):
        port = free_port()
        members = r"\bnode\d:2379(,node\d:2379)*"
        one, found = re.subn(members, f"127.0.0.1:{port}", command.text)
        one = re.sub(r":29400\b", f":{port}", re.sub(r"\bnode0\b", "127.0.0.1", one))
        if typed := re.search(r"--node-rank=(\d)", command.text):
            job, self.job = self.job, command.text.replace(typed[0], "")
            start = "rm -f terminal-*; all=; code=0\n" + "".join(
                f"{{ until [ {number} = 0 -o -s terminal-{number - 1} ]; do sleep 0.01; done; "
                f"{one.replace(typed[0], f'--node-rank={number}')}\n}} >terminal-{number} 2>&1 & all=\"$all $!\"\n"
                for number in range(machines)) + "for one in $all; do wait $one || code=$?; done; "
            command.text = ("code=0; " if job == self.job else start) + f"cat terminal-{typed[1]}; exit $code"
            return
        command.text = (etcd(port, free_port()) if found else "") + f"export PORT={port}; all=; code=0\n" + f"{{ {one}\n}} & all=\"$all $!\"\n" * machines + \
            "for one in $all; do wait $one || code=$?; done; exit $code"

    def run_command(self, command, allowed, any_order=False):
        """`allowed`: exit statuses; None: any."""
        result = run(["bash", "-c", f"exec 2>&1; (exit {self.status}); {command.text}"], cwd=self.folder, env=self.env,
                     timeout=120)
        self.status, self.ran = result.code, self.ran + 1
        where = f"{command.place}: {command.text}"
        if allowed is not None and result.code not in allowed:
            raise AssertionError(f"{where}\nexit status {result.code}\n{result.out}")
        out = result.out if not result.out or result.out.endswith("\n") else result.out + "\n"
        out = out.replace(f"{self.env['TMPDIR']}/ddrun-stacks-", "/tmp/ddrun-stacks-")
        if any_order and command.expected is not None:
            command.expected.sort()
            out = "".join(sorted(out.splitlines(keepends=True)))
        if command.expected is not None and not re.fullmatch(pattern(command.expected), out):
            expected = "".join(f"{line}\n" for line in command.expected)
            raise AssertionError(f"{where}\n--- the page says\n{expected}--- it printed\n{out}")
