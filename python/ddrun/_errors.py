"""What calls of ranks raise."""

import pickle
import re
import signal

# A page of stacks, in what ddrun says; its first line may say who waits for whom.
PAGE = re.compile(r"^ddrun(?: on \S+)?: (?:.+\n  )?where the ranks .*\n(?:  .*\n)*", re.M)
CALLERS = "IPython/core|_pytest|pluggy"  # folders of what calls cells and tests
# In a page, lines of the frames through which calls come.
OWN_FRAME = re.compile(rf"^    .* (\S*/)?(ddrun/_|({CALLERS})/)\w+\.py:\d+( .*)?\n|^    \.\.\. \d+ frames\n", re.M)


class RankError(RuntimeError):
    """In place of a rank's exception that cannot be pickled, and of SystemExit."""


class RankDied(RuntimeError):
    """A rank's process has ended: `rank`, `host`, `pid`, `signal` or `exit_code` (else None), and `reason` in words."""

    def __init__(self, reason, rank=None, host=None, pid=None, signal=None, exit_code=None):
        super().__init__(reason, rank, host, pid, signal, exit_code)
        self.reason, self.rank, self.host, self.pid, self.signal, self.exit_code = self.args

    def __str__(self):
        return self.reason


class RemoteTraceback(Exception):
    """The cause of a rank's exception: its traceback as text."""

    def __str__(self):
        return f'\n"""\n{self.args[0].rstrip()}\n"""'


def from_rank(error, peer):
    """The exception of a rank, from what _task.describe has made of it."""
    pickled, summary, text, item = error
    try:
        exception = pickle.loads(pickled)
        assert isinstance(exception, BaseException) and not isinstance(exception, SystemExit)
    except Exception as reason:
        why = f" ({summary.partition(':')[0]} cannot be unpickled: {reason})" if pickled and str(reason) else ""
        exception = RankError(summary + why)
    exception.__cause__ = RemoteTraceback(text)
    for note in (f"rank {peer.rank} of {peer.world_size} on {peer.host}, the first to fail", item):
        if note:
            add_note(exception, note)
    exception.ddrun_rank = peer.rank
    return exception


def died(job):
    """The exception for an event "failed" or "lost" of ddrun, or for its end without one."""
    event, said = job.death, job.output.take_said()
    pages = OWN_FRAME.sub("", "".join(PAGE.findall(said)))
    said = PAGE.sub("", said).strip()
    if job.verdict == "timed_out":
        error = TimeoutError(said)
    elif event:
        number = event.get("signal")
        error = RankDied(said or event["why"], event.get("rank"), event.get("host"), event.get("pid"),
                         signal.Signals(number) if number in list(signal.Signals) else number, event.get("exit_code"))
    else:
        error = RuntimeError(job.broken or said or f"ddrun has ended with status {job.result}, without a verdict on the job")
    add_stacks(error, pages)
    return error


def left(peer):
    """The exception for a rank that has ended by itself, before it has answered."""
    return RankDied(f"rank {peer.rank} on {peer.host} exited with code 0 before it has answered{peer.reason}", peer.rank,
                    peer.host, peer.pid, None, 0)


def add_stacks(exception, page):
    exception.ddrun_stacks = page
    if page:
        add_note(exception, page.rstrip())


def add_note(exception, note):
    if hasattr(exception, "add_note"):  # Python 3.11
        exception.add_note(note)
    else:
        exception.__cause__ = RemoteTraceback(f"{exception.__cause__.args[0] if exception.__cause__ else ''}\n{note}")
