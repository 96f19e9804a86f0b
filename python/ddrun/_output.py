"""What ranks print, live, with the ranks in front; equal lines of several ranks are shown once."""

import collections
import functools
import sys
import time

HOLD = 0.1  # seconds that a line waits for equal lines of other ranks
MOST_HELD = 1 << 20  # characters that wait
MOST_SAID = 1 << 16  # characters of what ddrun says


def ranks_text(ranks):
    """0-2,5,6"""
    parts, ranks = [], sorted(ranks)
    for rank in ranks:
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}{'-' if last - first > 1 else ','}{last}" for first, last in parts)


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


class Output:
    """show(stream, text) gets what ranks, --preload and --before write. What ddrun itself says is kept in `said`."""

    def __init__(self, show=None):
        self.write, self.said, self.unflushed = show or self.write_console, "", False
        self.folds = {stream: Fold(functools.partial(self.write, stream)) for stream in ("stdout", "stderr")}

    def set_ranks(self, ranks, size):
        for fold in self.folds.values():
            fold.ranks, fold.labelled = set(ranks), size > 1

    def line(self, rank, stream, text):
        if rank is not None:
            if text:
                self.folds[stream].add(rank, text)
        elif text.startswith(("[preload] ", "[before] ", "[after] ")):
            self.write(stream, text)
        else:
            self.said = (self.said + text)[-MOST_SAID:]

    def deadline(self):
        return min(filter(None, (fold.deadline() for fold in self.folds.values())), default=None)

    def show(self, everything=False):
        for fold in self.folds.values():
            fold.show(everything)
        if everything:
            self.flush()

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
