"""Which differences between ddrun and torchrun are intended: each rule is an entry of docs/coming-from-torchrun.md, named
there by a comment `<!-- id: … -->`. A rule states exactly what both sides must look like, so that it hides nothing
else."""

import pathlib
import re

from harness import VENV

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/coming-from-torchrun.md"
NOTHING = None  # an entry that one side does not have
RULES = []


def rule(row, what, one_sided=False):
    """The decorated function says of an entry whose name matches `what` if the row explains how it differs; with
    `one_sided` also of one that only ddrun or only torchrun has."""
    def register(function):
        RULES.append((row, re.compile(what), one_sided, function))
        return function
    return register


def rows_of_the_document():
    entries = re.findall(r"^\* [^\n]*(?:\n  [^\n]*)*", DOCUMENT.read_text(encoding="utf-8"), re.M)
    return [row for entry in entries for row in re.findall(r"<!-- id: ([a-z0-9-]+) -->", entry)]


def compare(line, ours, theirs):
    """The rows that explain how two observations of one line differ, and what no row explains."""
    if line.refused or line.accepted:
        return compare_refusals(line, ours, theirs)
    rows, unexplained = set(), []
    for what in sorted(set(ours) | set(theirs)):
        mine, other = ours.get(what, NOTHING), theirs.get(what, NOTHING)
        if mine == other:
            continue
        present = mine is not NOTHING and other is not NOTHING
        for row, pattern, one_sided, explains in RULES:
            if pattern.fullmatch(what) and (present or one_sided) and explains(line, mine, other):
                rows.add(row)
                break
        else:
            unexplained.append(f"{what}:\n    ddrun    {mine!r}\n    torchrun {other!r}")
    return rows, unexplained


def compare_refusals(line, ours, theirs):
    """One of them starts no worker and says why; the other does what was asked for."""
    refuses, accepts = (ours, theirs) if line.refused else (theirs, ours)
    wrong = [f"{name} ended with {seen['exit status']}" for name, seen, expected in
             (("the one that refuses", refuses, {1, 2, line.status or 1}), ("the other", accepts, {0}))
             if seen["exit status"] not in expected]
    if any(what.startswith("attempt ") for what in refuses):
        wrong.append("the one that refuses has started workers")
    if not refuses.get("message: refusal", refuses.get("message: report of a failure")):
        wrong.append("the one that refuses does not say why")
    if not accepts["stdout: lines of workers"] + accepts["stderr: lines of workers"]:
        wrong.append("the other has started no worker")
    return {line.refused or line.accepted}, wrong


def unlabelled(lines):
    """Without ddrun's label, which must be the rank of the worker that wrote the line."""
    def without(text):
        match = re.fullmatch(r"\[(\d+)\] (probe (\d+) .*)", text)
        return match[2] if match and match[1] == match[3] else text
    return sorted(map(without, lines or []))


# Ends and failures

@rule("exit-status", "exit status")
def _(line, ours, theirs):
    return theirs == 1 and ours == line.status and line.do and not line.signal


@rule("stopped-by-a-signal", "exit status")
def _(line, ours, theirs):
    return theirs == 1 and ours == line.status > 128 and line.signal


@rule("missing-program", "exit status")
def _(line, ours, theirs):
    return theirs == 1 and ours == line.status in (126, 127)


@rule("wrong-value", "exit status")
def _(line, ours, theirs):
    return theirs == 1 and ours == line.status == 2


# Where to meet

@rule("master-addr", r".*: variable MASTER_ADDR")
def _(line, ours, theirs):
    return ours == "127.0.0.1" and theirs == "(the host's name)"


@rule("job-id", r".*: variable TORCHELASTIC_RUN_ID")
def _(line, ours, theirs):
    return line.has("--rdzv-id=" + ours) and theirs == "UUID"


@rule("job-id", "message: warning", one_sided=True)
def _(line, ours, theirs):
    return ours is NOTHING and "--rdzv-id=" in line.words()


@rule("meeting-file", "file meet", one_sided=True)
def _(line, ours, theirs):
    return ours is NOTHING and line.has("--rdzv-conf=store_type=file")


@rule("master-port-0", r".*: variable MASTER_PORT")
def _(line, ours, theirs):
    return line.has("--master-port=0") and ours == "(a free port)" and theirs == "0"


# Output

@rule("console", r".*: descriptor [12]")
def _(line, ours, theirs):
    return ours == "pipe" and theirs == "file"


@rule("console", r"std(out|err): lines of workers")
def _(line, ours, theirs):
    return ours != unlabelled(ours) == theirs


@rule("teed-output", r".*: descriptor [12]")
def _(line, ours, theirs):
    return ours == "pipe" and re.fullmatch(r".*/attempt_\d/\d/std(out|err)\.log", theirs)


@rule("hidden-errors", r".*: descriptor 2")
def _(line, ours, theirs):
    return line.has("--local-ranks-filter") and ours == "pipe" and theirs == "/dev/null"


@rule("no-log-files", r".*: descriptor [12]")
def _(line, ours, theirs):
    return line.has("--log-dir=/dev/null") and line.has("-r") and ours == "/dev/null" and theirs == "file"


@rule("no-log-files", r"std(out|err): lines of workers")
def _(line, ours, theirs):
    return line.has("--log-dir=/dev/null") and line.has("-r") and ours == []


@rule("teed-label", r"std(out|err): lines of workers|file logs/.*/filtered_std(out|err)\.log")
def _(line, ours, theirs):
    """torchrun's role and local rank, before lines of --tee only."""
    plain = sorted(re.sub(r"^\[\w*?\d+\]:", "", text) for text in theirs or [])
    return "DDRUN_LABEL" not in line.env and unlabelled(ours) == plain != theirs


@rule("latest-link", r"folder (work/)?logs/(.+/)?latest", one_sided=True)
def _(line, ours, theirs):
    return theirs is NOTHING


@rule("private-folder", r"folder tmp/FOLDER.*", one_sided=True)
def _(line, ours, theirs):
    return ours is NOTHING


@rule("private-folder", r".*: (variable TORCHELASTIC_ERROR_FILE|descriptor [12])")
def _(line, ours, theirs):
    """Another name for the folder in TMPDIR, and another place for what may be an error file."""
    if re.fullmatch(r"DIR/tmp/ddrun_RANDOM/error_\d_\d\.json", ours):
        return re.fullmatch(r"DIR/tmp/torchelastic_RANDOM/[^/]+_RANDOM/attempt_\d/\d/error\.json", theirs)
    return theirs.replace("tmp/torchelastic_RANDOM", "tmp/ddrun_RANDOM") == ours


@rule("absolute-paths", r".*: variable TORCHELASTIC_ERROR_FILE")
def _(line, ours, theirs):
    return ours == f"DIR/work/{theirs}"


@rule("stdin", r".*rank [1-9]\d*: descriptor 0")
def _(line, ours, theirs):
    return ours == "/dev/null" and theirs == "file"


# Command line

@rule("run-path", r".*: (command|leads its (session|process group)|descriptor \d\d?)", one_sided=True)
def _(line, ours, theirs):
    if not line.has("--run-path") and "PET_RUN_PATH" not in line.env:
        return False
    return ours in (True, NOTHING) or ours[0] == "-u"


@rule("which-python", r".*: interpreter")
def _(line, ours, theirs):
    return "PATH" in line.env and ours == "/usr/bin/python3" and theirs.startswith(f"{VENV}/bin/python")


@rule("rank-in-arguments", r".*: (argv|command)")
def _(line, ours, theirs):
    return [re.sub(r"^\d$", "${rank}", word) for word in ours] == theirs


@rule("dollar-signs", r".*: (argv|command)")
def _(line, ours, theirs):
    return [word.replace("$$", "$").replace("$local_rank", "0") for word in ours] == theirs


# Environment

@rule("own-variables", r".*: variable DDRUN_(VERSION|JOB_TAG|ATTEMPT_DIR|ROUND)", one_sided=True)
def _(line, ours, theirs):
    return theirs is NOTHING


@rule("omp-warning", "message: warning about OMP_NUM_THREADS", one_sided=True)
def _(line, ours, theirs):
    return ours is NOTHING


@rule("faulthandler", r".*: variable PYTHONFAULTHANDLER", one_sided=True)
def _(line, ours, theirs):
    return ours == "1" and theirs is NOTHING


@rule("unbuffered", r".*: variable PYTHONUNBUFFERED", one_sided=True)
def _(line, ours, theirs):
    return ours == "1" and theirs is NOTHING


@rule("signal-list", r".*: variable TORCHELASTIC_SIGNALS_TO_HANDLE")
def _(line, ours, theirs):
    return sorted(ours.split(",")) == sorted(theirs.split(","))


# Messages

@rule("no-effect", "message: warning", one_sided=True)
def _(line, ours, theirs):
    """Options that do nothing are not passed over in silence."""
    return theirs is NOTHING and \
        (line.has("--standalone") or line.has("--start-method=") or line.has("--monitor-interval="))


@rule("unknown-signal", r"message: warning|.*: variable TORCHINDUCTOR_CACHE_DIR|folder tmp/torchinductor_root",
      one_sided=True)
def _(line, ours, theirs):
    """Of the empty name; its traceback makes torchrun import much."""
    return ours is NOTHING and "--signals-to-handle=" in line.words()


@rule("report", "message: warning", one_sided=True)
def _(line, ours, theirs):
    return ours is NOTHING and (line.do or line.signal)


@rule("missing-program", "message: (refusal|report of a failure)", one_sided=True)
def _(line, ours, theirs):
    return line.text == "missing.py"


@rule("events", "events")
def _(line, ours, theirs):
    prefix = "AGENT torchelastic.worker.status."
    return {name: value for name, value in theirs.items()
            if name not in (prefix + "RENDEZVOUS", prefix + "ASSIGN_WORKER_RANKS")} == ours


@rule("duplicate-filters", "file logs/.*/filtered_stdout.log")
def _(line, ours, theirs):
    return ours == ["probe 0 two, and a comma"] and theirs == []
