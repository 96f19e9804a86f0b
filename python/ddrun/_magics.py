"""%ddrun and %%ddrun, see docs/notebooks.md."""

import argparse
import functools
import pickle
import re
import shlex

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import clear_output, display, publish_display_data

from ddrun import _cells, _process_group, _task
from ddrun._group import Group
from ddrun._output import ranks_named

USAGE = """%ddrun start [N] [--preload MODULES] [--hosts HOSTS] [options of ddrun]   start N ranks (default: auto)
%%ddrun [--rank 0,2]                a cell on all ranks, or on these
%ddrun push NAME...                 copy variables of the notebook to all ranks
%ddrun pull EXPRESSION              its values, by rank
%ddrun stacks                       where each rank is
%ddrun status | restart | stop"""


class NotebookGroup(Group):
    cells = True

    def display(self, what, content):
        """See _cells.Publisher. `content` is pickled for itself: what cannot be unpickled ends nothing."""
        try:
            method, arguments = pickle.loads(content)
            {"publish": publish_display_data, "clear_output": clear_output}[method](**arguments)
            if method == "clear_output" and self._output.rows:
                self._output.rows.handle = None
        except Exception as error:
            self._output.write("stderr", f"ddrun: a display of {what} cannot be shown: {type(error).__name__}: {error}\n")


@magics_class
class DdrunMagics(Magics):
    group, kept = None, False  # of the class: %reload_ext makes another object. kept: ranks have a traceback for %debug

    @line_cell_magic
    def ddrun(self, line, cell=None):
        word, _, rest = line.strip().partition(" ")
        try:
            if cell is not None:
                return self.run(line, cell)
            if word not in ("start", "push", "pull", "stacks", "status", "restart", "stop"):
                raise UsageError(f"usage:\n{USAGE}")
            return getattr(self, word)(rest)
        except UsageError:
            raise
        except BaseException as error:
            if isinstance(error, SyntaxError):  # of which IPython shows nothing else than a traceback to here
                cause, error = error.__cause__, type("SyntaxError", (Exception,), {})(str(error))
                error.__cause__ = cause
            error._render_traceback_ = functools.partial(render, error)  # without the frames of this package
            raise error

    def started(self):
        if self.group is None:
            raise UsageError("no ranks have been started: %ddrun start 4")
        return self.group

    def start(self, line):
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--preload"), parser.add_argument("--hosts")
        given, words = parser.parse_known_args(shlex.split(line))
        number = words.pop(0) if words and not words[0].startswith("-") else "auto"
        self.stop()
        DdrunMagics.group = NotebookGroup(number, given.hosts, given.preload, words)
        self.show_pids()

    def run(self, line, cell):
        words = re.fullmatch(r"\s*(?:--ranks?[ =]([\d,]+))?\s*", line)
        if not words:
            raise UsageError(f"usage:\n{USAGE}")
        ranks = [int(rank) for rank in words[1].split(",") if rank] if words[1] else None
        group = self.started()
        first = min(ranks) if ranks else 0
        number = len(self.shell.user_ns["In"]) - 1  # of this cell; execution_count may be the next one's
        debug = cell.lstrip().startswith("%debug")
        if self.kept and not debug:
            group.run(_task.forget)
        DdrunMagics.kept = True
        results = group.run(_cells.run, cell, first, number, ranks=ranks)
        DdrunMagics.kept = debug
        values = dict(zip(ranks or range(len(results)), results))
        data, metadata = values[first] or ({}, {})
        if set(data) > {"text/plain"}:
            return display(data, metadata=metadata, raw=True)
        for rank, value in values.items():
            if value and "text/plain" in value[0]:
                group._output.line(rank, "stdout", value[0]["text/plain"] + "\n")
        group._output.show(True)

    def push(self, line):
        namespace = self.shell.user_ns
        if missing := [name for name in line.split() if name not in namespace]:
            raise UsageError(f"the notebook has no variable {missing[0]}")
        self.started().put(**{name: namespace[name] for name in line.split()})

    def pull(self, line):
        return self.started().pull(line)

    def status(self, line=""):
        self.show_pids()
        for rank, text in enumerate(self.group.run(_process_group.status)):
            self.group._output.line(rank, "stdout", text + "\n")
        self.group._output.show(True)

    def stacks(self, line):
        print(self.started().stacks(), end="")

    def show_pids(self):
        peers = self.started().peers()
        for host in dict.fromkeys(peer.host for peer in peers):
            here = {peer.rank: str(peer.pid) for peer in peers if peer.host == host}
            print(f"{ranks_named(here)} on {host}: pids {', '.join(here.values())}")

    def restart(self, line):
        self.started().restart()

    def stop(self, line=""):
        if self.group:
            self.group.close()
        DdrunMagics.group = None


def render(error):
    notes = getattr(error, "__notes__", [])
    cause = getattr(error.__cause__, "args", None)
    return [cause[0].rstrip() if cause else f"{type(error).__name__}: {error}", *notes]
