"""One call of a Group."""

import collections
import itertools
import pickle
import time

from ddrun import _process_group, _task
from ddrun._errors import RemoteTraceback, add_note, add_stacks, from_rank
from ddrun._output import ranks_named
from ddrun._payload import payload

__tracebackhide__ = True  # by pytest

ABORT_AFTER, RESTART_AFTER = 1, 5  # seconds from the interrupt of the ranks
MARK_TIMEOUT = 1  # seconds; a stream may be closed, or in files only
GATHER = 0.05  # seconds in which ranks that reach a breakpoint together are said to wait
GROW_BELOW = 0.001  # seconds that a piece of map takes


def pieces(function, items, put, seconds):
    """Tasks of one rank for map. `seconds`, a list, is what the last one took."""
    size, sent = 1, False
    while piece := list(itertools.islice(items, size)):
        if not sent:
            yield None, function
            sent = True
        yield piece[0][0], payload(_task.map_items, (piece[0][0], [args for _, args in piece]), put=put)
        size *= 2 if seconds[0] < GROW_BELOW else 1


class Call:
    """Sends each rank what its queue gives, (index or None, payload), one by one.

    When a rank raises an exception, at Ctrl-C and after `timeout` seconds, the ranks are interrupted. What is stuck in a
    collective then is freed by ending the process groups of the ranks that are not; at last, and at a second Ctrl-C, the
    group is restarted. A process group in which ranks have begun different numbers of collectives is ended too.
    """

    def __init__(self, group, timeout):
        self.group, self.queues, self.values = group, {}, {}  # by rank; by index
        self.timeout, self.deadline = timeout, None if timeout is None else time.monotonic() + timeout
        self.active = {}  # by number: (peer, index)
        self.seconds = collections.defaultdict(lambda: [0])  # by rank: of the last task
        self.marks = set()  # (number, stream) whose output is not complete
        self.leaving, self.left = {}, None  # of _process_group.leave: ranks by number, and what was returned, once it is due
        self.begun = collections.defaultdict(collections.Counter)  # by rank: collectives, by the name of the process group
        # (peer, number, text) of breakpoints; the peer that is debugged; ranks that are said to wait for it
        self.requests, self.debugged, self.waiting = [], None, set()
        self.failure = self.stopped = self.answered = None
        self.interrupts, self.notes, self.round = 0, [], group._job.round

    def run(self, queues):
        """The values, in the order of index."""
        group, job, beginning, self.queues = self.group, self.group._job, list(queues), queues
        group._shown.clear()
        group._output.begin()
        job.set_idle(False)
        if job.dropped:
            group._output.write("stderr", f"ddrun: {job.dropped:,} bytes that ranks printed between calls were not kept\n")
            job.dropped = 0
        try:
            while beginning or self.active or self.marks or self.leaving:
                try:
                    if beginning:
                        self.give(beginning.pop(0))
                    elif not self.step():
                        break
                except KeyboardInterrupt:
                    self.interrupts += 1
                    if self.interrupts > 1:
                        group.restart()
                        raise
                    self.stop()
        finally:
            group._job.set_idle(True)
        if self.stopped and not self.notes and (any(self.left or ()) or self.uneven()):
            group.run(_process_group.leave)
            if holder := next(filter(None, group.run(_process_group.store_holder)), None):
                group.restart()
                self.notes.append(f"{holder} held the store of torch's process group; all ranks were started anew, without "
                                  "variables")
            else:
                self.notes.append("torch's process group was ended on all ranks; init_process_group makes a new one")
        group._output.show(True)
        group._output.show_said()
        if self.interrupts:
            raise KeyboardInterrupt(*self.notes)
        if self.failure:
            for note in self.notes:
                add_note(self.failure, note)
            raise self.failure
        return [pickle.loads(value) for _, value in sorted(self.values.items())]

    def give(self, rank):
        if self.stopped:
            return
        try:
            index, task = next(self.queues[rank], (None, None))
        except Exception as error:  # of what was given to map
            self.failure = error
            self.stop()
            return
        if task:
            number, peer = next(self.group._numbers), self.group._job.peers[rank]
            self.active[number] = peer, index
            self.marks |= {(number, stream) for stream in self.group._streams}
            self.group._job.send(peer, number, task)

    def step(self):
        """Handles one item, or what is due; false if the call is over."""
        group, job = self.group, self.group._job
        since = self.stopped if self.active else self.answered and max(self.answered, job.shown)
        limit = ABORT_AFTER if self.left is None else RESTART_AFTER
        if not self.active and not self.leaving:
            limit = MARK_TIMEOUT
        deadline = since + limit if since else self.deadline
        if request := self.next_request():
            deadline = self.asked + (0 if self.debugged else GATHER)
        kind, *content = job.take(deadline) or [None]
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "mark":
            self.on_mark(content[0])
        elif kind == "answer":
            self.on_answer(content[0], *content[1])
        elif job.death or job.status is not None or job.round > self.round:
            raise group._dead()
        elif kind == "gone" and content[0] in self.peers():
            raise group._dead(content[0])
        elif kind is None and request:
            self.debug(*request)
        elif kind is None:
            if not self.active and not self.leaving:
                if job.lines:  # the marks are behind them
                    self.on_mark(job.show_line())
                    return True
                self.group._streams -= {stream for _, stream in self.marks}
                return False
            stuck = {peer.rank for peer in self.peers()} or set(self.leaving.values())
            if not self.stopped:
                self.time_out(stuck)
                self.stop()
                return True
            if self.left is not None:
                group.restart()
                held = next((f", as {left} holds torch's process group" for left in self.left if isinstance(left, str)), "")
                self.notes.append(f"{ranks_named(stuck)} did not stop{held}; all ranks were started anew, without variables")
                return False
            self.left = []
            self.interrupt()  # the first may have come while Python ignores exceptions, as in a callback of the import lock
            self.leave(set(self.queues) - stuck)
            for peer in self.peers():
                job.send(peer, "abort")
        return True

    def time_out(self, stuck):
        self.failure = TimeoutError(f"the call took more than {self.timeout} s; {ranks_named(stuck)} had not answered")
        add_stacks(self.failure, self.group.stacks(stuck))

    def uneven(self):
        """Whether some ranks have begun a collective that others have not, so that the next one would hang."""
        counts = self.begun.values()
        return any(len({count[name] for count in counts if name in count}) > 1 for name in set().union(*counts))

    def on_answer(self, peer, number, kind, content, begun=(), seconds=0):
        if kind == "display":
            number, *shown = content
            self.group._show_until(number)
            self.group.display(*shown)
            self.group._job.send(peer, "answer", number, None)
        elif kind == "debug" and self.stopped:
            self.group._job.send(peer, "answer", content[0], None)
        elif kind == "debug":
            self.requests.append((peer, *content))
            self.asked = time.monotonic()
        elif kind == "continue":
            self.release(peer)
        elif kind == "unreadable":
            self.group._output.write("stderr", f"ddrun: a message of rank {peer.rank} cannot be unpickled: {content}\n")
        elif number in self.leaving:
            del self.leaving[number]
            self.left.append(kind != "value" or pickle.loads(content))
        elif number in self.active:
            _, index = self.active.pop(number)
            self.answered = time.monotonic()
            self.begun[peer.rank].update(begun)
            self.seconds[peer.rank][0] = seconds
            self.release(peer)
            if self.left is not None:
                self.leave([peer.rank])
            if kind == "value":
                if index is not None:
                    self.values[index] = content
                self.give(peer.rank)
            elif not self.failure:
                self.failure = from_rank(content, peer)
                self.stop()
            elif isinstance(self.failure, TimeoutError) and not self.failure.__cause__:
                self.failure.__cause__ = RemoteTraceback(content[2])  # where it was

    def release(self, peer):
        """Another rank may be debugged, if it was this one."""
        if self.debugged is peer:
            self.debugged = None

    def on_mark(self, mark):
        if mark in self.marks:
            self.marks.remove(mark)
        elif mark:
            self.group._shown.add(mark)

    def next_request(self):
        """Of one rank at a time."""
        return next((request for request in self.requests if self.debugged in (None, request[0])), None)

    def debug(self, peer, number, text):
        """Shows what the debugger of a rank says, and sends it a line of input. The time counts for no limit."""
        if self.debugged is not peer:
            self.waiting = set()
        if waiting := {other.rank for other, *_ in self.requests} - {peer.rank} - self.waiting:
            wait = "waits" if len(waiting) == 1 else "wait"
            said = f"{ranks_named(waiting)} {wait} at a breakpoint until rank {peer.rank} goes on"
            self.group._output.write("stderr", f"ddrun: {said}\n")
            self.waiting |= waiting
        self.debugged, begun = peer, time.monotonic()
        self.group._show_until(number)
        line = self.group._output.ask(peer.rank, text)  # KeyboardInterrupt: `stop` answers
        if self.deadline:
            self.deadline += time.monotonic() - begun
        self.requests.remove((peer, number, text))
        self.group._job.send(peer, "answer", number, line)

    def peers(self):
        return [peer for peer, _ in list(self.active.values())]

    def stop(self):
        if not self.stopped:
            self.stopped = time.monotonic()
            self.interrupt()
            for peer, number, _ in self.requests:
                self.group._job.send(peer, "answer", number, None)
            self.requests = []

    def interrupt(self):
        for number, (peer, _) in list(self.active.items()):
            self.group._job.send(peer, "interrupt", number)

    def leave(self, ranks):
        for rank in ranks:
            number = next(self.group._numbers)
            self.leaving[number] = rank
            self.group._job.send(self.group._job.peers[rank], number, payload(_process_group.leave))
