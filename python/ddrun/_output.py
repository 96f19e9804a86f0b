"""What ranks print, live, with the ranks in front; equal lines of several ranks are shown once."""

import collections
import functools
import os
import re
import sys
import time

from ddrun._errors import CALLERS

HOLD = 0.1  # seconds that a line waits for equal lines of other ranks
MOST_HELD = 1 << 20  # characters that wait
MOST_SAID = 1 << 16  # characters of what ddrun says
OF_CALLS = re.compile(f"/({CALLERS})/|<ddrun --preload>")  # files of what calls tasks, in stacks of a crash
UPDATE = 0.1  # seconds between two updates of progress bars


def ranks_text(ranks):
    """0-2,5,6"""
    parts, ranks = [], sorted(ranks)
    for rank in ranks:
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}{'-' if last - first > 1 else ','}{last}" for first, last in parts)


def ranks_named(ranks):
    return f"rank{'s' * (len(ranks) != 1)} {ranks_text(ranks)}"


class Fold:
    """One stream of all ranks. write(text) gets whole lines, or pieces that end with a carriage return."""

    def __init__(self, write):
        self.write, self.ranks, self.labelled, self.held = write, set(), True, 0
        self.lines = collections.defaultdict(collections.deque)  # by rank: (time, text)

    def add(self, rank, text):
        self.lines[rank].append((time.monotonic(), text))
        self.held += len(text)
        self.show(self.held > MOST_HELD)

    def deadline(self):
        return min((queue[0][0] + HOLD for queue in self.lines.values() if queue), default=None)

    def show(self, everything=False):
        """Writes what need not wait: if each rank has a line all but the most frequent one, which others may still write."""
        while heads := {rank: queue[0] for rank, queue in self.lines.items() if queue}:
            groups = collections.defaultdict(list)
            for rank in sorted(heads):
                groups[heads[rank][1]].append(rank)
            chosen = list(groups)
            if not everything:
                largest = max(groups, key=lambda text: len(groups[text]))
                late = time.monotonic() - HOLD
                if self.ranks and self.ranks <= set(heads):
                    chosen = [text for text in groups if len(groups) == 1 or text != largest or len(groups[text]) == 1]
                else:
                    chosen = [text for text in groups if any(heads[rank][0] <= late for rank in groups[text])]
                if not chosen:
                    return
            for text in chosen:
                for rank in groups[text]:
                    self.lines[rank].popleft()
                    self.held -= len(text)
                self.write(f"[{ranks_text(groups[text])}] {text}" if self.labelled else text)


class Rows:
    """Progress bars in a cell: pieces that end with a carriage return, a row for each, in a display that is updated."""

    def __init__(self):
        self.texts, self.handle, self.due = {}, None, None  # texts: by (rank, stream)

    def set(self, key, text):
        if text.strip() or key in self.texts:
            self.texts[key], self.due = text, self.due or time.monotonic() + UPDATE

    def remove(self, key):
        """The bar has ended with a line, which is shown below."""
        if self.texts.pop(key, "").strip():
            self.due = self.due or time.monotonic() + UPDATE

    def show(self, labelled):
        from IPython.display import display

        rows = "\n".join(f"[{rank}] {text}" if labelled else text
                         for (rank, _), text in sorted(self.texts.items()) if text.strip())
        self.due = None
        if self.handle:
            self.handle.update({"text/plain": rows}, raw=True)
        elif rows:
            self.handle = display({"text/plain": rows}, raw=True, display_id=True)


class Crash:
    """The stacks that faulthandler prints when a rank dies, without the frames that lead to its task."""

    def __init__(self):
        self.held, self.own = "", False  # the title of a thread; whether it is one of this package

    def lines(self, text):
        """What to show in place of this line."""
        held, self.held = self.held, ""
        frame = re.match(r'  File "(.*)", line \d+', text)
        is_own = frame and (os.path.dirname(frame[1]) == os.path.dirname(__file__) or OF_CALLS.search(frame[1]))
        if re.match("(Current t|T)hread 0x", text):
            self.held, self.own = text, False
            return []
        was_own, self.own = self.own, bool((self.own or held and is_own) and text.strip())
        return [] if is_own or self.own or was_own else [held, text]


class Output:
    """show(stream, text) gets what ranks, --preload and --before write. What ddrun itself says is kept in `said`."""

    def __init__(self, show=None):
        self.write, self.said, self.unflushed = show or self.write_console, "", False
        self.crashes = {}  # by rank
        shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
        self.in_notebook = show is None and hasattr(shell, "kernel")
        self.folds = {stream: Fold(functools.partial(self.write, stream)) for stream in ("stdout", "stderr")}
        self.begin()

    def set_ranks(self, ranks, size):
        for fold in self.folds.values():
            fold.ranks, fold.labelled = set(ranks), size > 1
        self.crashes = {}

    def begin(self):
        """Of a call."""
        self.rows = Rows() if self.in_notebook else None

    def line(self, rank, stream, text):
        if rank is not None:
            if text.startswith("Fatal Python error: "):
                self.crashes[rank] = Crash()
            elif self.rows and text.endswith("\r"):
                return self.rows.set((rank, stream), text[:-1])
            elif self.rows:
                self.rows.remove((rank, stream))
            for text in self.crashes[rank].lines(text) if rank in self.crashes else [text]:
                if text:
                    self.folds[stream].add(rank, text)
        elif text.startswith(("[preload] ", "[before] ", "[after] ")):
            self.write(stream, text)
        else:
            self.said = (self.said + text)[-MOST_SAID:]

    def deadline(self):
        moments = [fold.deadline() for fold in self.folds.values()] + [self.rows and self.rows.due]
        return min(filter(None, moments), default=None)

    def show(self, everything=False):
        for fold in self.folds.values():
            fold.show(everything)
        if everything:
            self.flush()
        if self.rows and self.rows.due and (everything or time.monotonic() >= self.rows.due):
            self.rows.show(self.folds["stdout"].labelled)

    def write_console(self, stream, text):
        file = getattr(sys, stream)
        if file is None or getattr(file, "closed", False):
            return
        try:
            file.write(text)
        except UnicodeEncodeError:
            encoding = file.encoding or "ascii"
            file.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.unflushed = True

    def ask(self, rank, text):
        """A line of input, None if there is none; the last line of text is the prompt. Blocks; raises KeyboardInterrupt."""
        label = f"[{rank}] " if self.folds["stdout"].labelled else ""
        *lines, prompt = text.split("\n")
        for line in lines:
            self.write("stdout", f"{label}{line}\n")
        self.flush()
        try:
            return input(label + prompt)
        except EOFError:
            self.write("stdout", "\n")
        except Exception as error:  # of a notebook that is run as a program, of pytest
            self.write("stderr", f"ddrun: there is no input for the debugger of rank {rank}: {error}\n")
        return None

    def flush(self):
        """Before this thread waits: a notebook gets one message for lines that come together."""
        if self.unflushed:
            self.unflushed = False
            for file in (sys.stdout, sys.stderr):
                if file is not None and not getattr(file, "closed", False):
                    file.flush()

    def take_said(self):
        said, self.said = self.said, ""
        return said

    def show_said(self):
        if said := self.take_said():
            self.write("stderr", said)
