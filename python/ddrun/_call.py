"""One call of a Group."""

import collections
import pickle
import time

from ddrun import _process_group
from ddrun._errors import from_rank
from ddrun._output import ranks_text
from ddrun._payload import payload

__tracebackhide__ = True  # by pytest

ABORT_AFTER, RESTART_AFTER = 1, 5  # seconds from the interrupt of the ranks
MARK_TIMEOUT = 1  # seconds; a stream may be closed, or in files only


class Call:
    """Sends each rank what its queue holds, (index, payload), one by one; the values are returned in the order of index.

    When a rank raises an exception, or at Ctrl-C, the other ranks are interrupted. What is stuck in a collective then is
    freed by ending the process groups of the ranks that are not; at last, and at a second Ctrl-C, the group is restarted.
    A process group in which ranks have begun different numbers of collectives is ended too.
    """

    def __init__(self, group, queues, count):
        self.group, self.queues, self.values = group, queues, [None] * count
        self.active = {}  # by number: (peer, index)
        self.marks = set()  # (number, stream) whose output is not complete
        self.left = {}  # by number of a _process_group.leave: whether there was a group, None without an answer
        self.begun = {rank: collections.Counter() for rank in queues}  # collectives, by the name of the process group
        self.failure = self.stopped = self.answered = None
        self.interrupts, self.notes, self.round = 0, [], group._job.round

    def run(self):
        group, job, beginning = self.group, self.group._job, list(self.queues)
        job.set_idle(False)
        if job.dropped:
            group._output.write("stderr", f"ddrun: {job.dropped:,} bytes that ranks printed between calls were not kept\n")
            job.dropped = 0
        try:
            while beginning or self.active or self.marks or None in self.left.values():
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
        if self.stopped and not self.notes and (any(self.left.values()) or self.uneven()):
            group.run(_process_group.leave)  # rank 0 has closed its store when the next call connects to a new one
            self.notes.append("torch's process group was ended on all ranks; init_process_group makes a new one")
        group._output.show(True)
        group._output.show_said()
        if self.interrupts:
            raise KeyboardInterrupt(*self.notes)
        if self.failure:
            raise from_rank(*self.failure, notes=self.notes)
        return [pickle.loads(value) for value in self.values]

    def give(self, rank):
        if self.queues[rank] and not self.stopped:
            index, task = self.queues[rank].popleft()
            number, peer = next(self.group._numbers), self.group._job.peers[rank]
            self.active[number] = peer, index
            self.marks |= {(number, stream) for stream in self.group._streams}
            self.group._job.send(peer, number, task)

    def step(self):
        """Handles one item, or what is due; false if the call is over."""
        group, job = self.group, self.group._job
        since = self.stopped if self.active else self.answered and max(self.answered, job.shown)
        limit = MARK_TIMEOUT if not self.active else RESTART_AFTER if self.left else ABORT_AFTER
        kind, *content = job.take(since and since + limit) or [None]
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
        elif kind is None:
            if not self.active:
                if job.lines:  # the marks are behind them
                    self.on_mark(job.show_line())
                    return True
                self.group._streams -= {stream for _, stream in self.marks}
                return False
            stuck = {peer.rank for peer in self.peers()}
            if self.left:
                group.restart()
                self.notes.append(f"rank {ranks_text(stuck)} did not stop; all ranks were started anew, without variables")
                return False
            self.left[0] = False
            self.interrupt()  # the first may have come while Python ignores exceptions, as in a callback of the import lock
            self.leave(set(self.queues) - stuck)
            for peer in self.peers():
                job.send(peer, "abort")
        return True

    def uneven(self):
        """Whether some ranks have begun a collective that others have not, so that the next one would hang."""
        counts = self.begun.values()
        return any(len({count[name] for count in counts if name in count}) > 1 for name in set().union(*counts))

    def on_answer(self, peer, number, kind, content, begun=()):
        if kind == "display":
            self.group.display(*content)
        elif kind == "unreadable":
            self.group._output.write("stderr", f"ddrun: a message of rank {peer.rank} cannot be unpickled: {content}\n")
        elif number in self.left:
            self.left[number] = kind == "value" and pickle.loads(content)
        elif number in self.active:
            _, index = self.active.pop(number)
            self.answered = time.monotonic()
            self.begun[peer.rank].update(begun)
            if self.left:
                self.leave([peer.rank])
            if kind == "value":
                self.values[index] = content
                self.give(peer.rank)
            else:
                self.failure = self.failure or (content, peer.rank, peer.world_size, peer.host)
                self.stop()

    def on_mark(self, mark):
        self.marks.discard(mark)
        if mark:
            self.group.mark(mark)

    def peers(self):
        return [peer for peer, _ in list(self.active.values())]

    def stop(self):
        if not self.stopped:
            self.stopped = time.monotonic()
            self.interrupt()

    def interrupt(self):
        for number, (peer, _) in list(self.active.items()):
            self.group._job.send(peer, "interrupt", number)

    def leave(self, ranks):
        for rank in ranks:
            number = next(self.group._numbers)
            self.left[number] = None
            self.group._job.send(self.group._job.peers[rank], number, payload(_process_group.leave))
