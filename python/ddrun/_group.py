"""Functions on all ranks of a ddrun job: `run` starts one for a call, a `Group` stays."""

import atexit
import collections
import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import threading
import time

from ddrun import _task, find_ddrun
from ddrun._call import MARK_TIMEOUT, RESTART_AFTER, Call, pieces
from ddrun._connection import NOT_CONNECTED
from ddrun._errors import OWN_FRAME, add_note, died, from_rank, left
from ddrun._job import Job
from ddrun._options import check_parameters, words
from ddrun._output import Output, ranks_text
from ddrun._payload import payload

__tracebackhide__ = True  # by pytest

START_TIMEOUT = 600  # seconds


def run(fn, /, *args, nproc_per_node="auto", hosts=None, preload=None, timeout=None, options=(), show=None, **kwargs):
    """Calls fn(*args, **kwargs) on each rank of a new job and returns the values in the order of ranks.

    nproc_per_node, hosts, preload, timeout (seconds, then TimeoutError) and options are those of the command line:
    options="--max-restarts=3 --tee=3", or a list. show(stream, text) gets what ranks print. If a rank fails, what the first
    one raised is raised here, or RankDied if its process was killed. Blocks until the job has ended.
    """
    check_parameters(fn, nproc_per_node=nproc_per_node != "auto", hosts=hosts, preload=preload, timeout=timeout,
                     options=options, show=show)
    given = words(nproc_per_node, hosts, preload, options)
    return list(launch(payload(fn, args, kwargs), given + [f"--timeout={timeout}"] * (timeout is not None), show).values())


def launch(call, options, show=None):
    """Runs the call, made by `payload`, on each rank. A restart of the job runs it again. Returns the values by rank, in the
    order of ranks; of this machine's, if others have joined the job by themselves."""
    output = Output(show)
    job, values, failure, interrupted = Job(options, output, once=True), {}, None, False
    try:
        while job.status is None:
            try:
                kind, *content = job.take()
                if kind == "hello" and content[0].round == job.round:
                    peer, = content
                    if len(job.peers) == 1:  # the first one of an attempt
                        values, failure, job.death = {}, None, None
                    job.send(peer, 1, call)
                elif kind == "answer" and content[0].round == job.round:
                    peer, (_, kind, result, *_) = content
                    if kind == "value":
                        values[peer.rank] = result
                    elif kind == "error":
                        failure = failure or from_rank(result, peer)
                elif kind == "event" and content[0]["event"] == "restart":
                    job.show_lines()  # of the attempt before
                    output.write("stderr", f"ddrun: restarting: {content[0]['why']}\n")
            except KeyboardInterrupt:
                job.signal(signal.SIGINT)  # twice: ddrun kills all
                interrupted = True
    finally:
        job.end()
    output.show(True)
    if interrupted:
        raise KeyboardInterrupt
    if failure:
        raise failure
    if job.status:
        raise died(job)
    output.show_said()
    silent = [peer for rank, peer in sorted(job.peers.items()) if rank not in values]
    if silent:
        raise left(silent[0])
    if not job.size or len(values) < job.size or job.proved != job.round:
        raise RuntimeError(f"{len(values)} of {job.size or 'the'} ranks of this call have answered, though ddrun says that the "
                           "job has succeeded")
    return {rank: pickle.loads(value) for rank, value in sorted(values.items())}


class Group:
    """Processes of one job that run one call after the other. `interrupt` may be called by all threads.

    nproc_per_node, hosts, preload and options are those of the command line: Group(8, hosts="a,b", preload="torch").
    timeout: seconds of a call, then TimeoutError. show(stream, text) gets what ranks print, by default it goes to stdout and
    stderr. A rank that dies makes the call raise RankDied and all ranks start anew. breakpoint() asks for input here. A
    group ends with `close`, at the end of a `with` block, and with this process.
    """

    cells = False  # of a notebook

    def __init__(self, nproc_per_node="auto", hosts=None, preload=None, options=(), show=None, timeout=None):
        self._options = ["--max-restarts=1000000", "--same-cause=0", f"--no-restart-on={NOT_CONNECTED}",
                         *words(nproc_per_node, hosts, preload, options, self.cells)]
        self._timeout, self._output, self._numbers = timeout, Output(show), itertools.count(1)
        self._lock = threading.RLock()  # of the thread whose call runs
        self._begin()

    def run(self, fn, /, *args, ranks=None, timeout=None, **kwargs):
        """Calls fn(*args, **kwargs) on all ranks, or on these, and returns the values in their order.

        What the first rank to fail raises is raised here, after the other ranks have been interrupted. The processes stay;
        a process group of torch.distributed is ended on all ranks if one could not be interrupted, or if some have begun a
        collective that others have not.
        """
        check_parameters(fn, ranks=ranks, timeout=timeout)
        with self._exclusive():
            ranks = self._chosen(ranks)
            call = payload(fn, args, kwargs, self._names())
            return self._call(timeout).run({rank: iter([(index, call)]) for index, rank in enumerate(ranks)})

    def map(self, fn, /, *iterables, timeout=None):
        """[fn(*items) for items in zip(*iterables)]. Ranks that have nothing to do get the next items: as many as take less
        than 2 ms. What fn raises has a note that names the item."""
        with self._exclusive():
            ranks, items, names = self._chosen(None), enumerate(zip(*iterables)), self._names()
            function, call = payload(_task.set_mapped, (fn,), put=names), self._call(timeout)
            queues = {rank: pieces(function, items, names, call.seconds[rank]) for rank in ranks}
            return list(itertools.chain.from_iterable(call.run(queues)))

    def put(self, **values):
        """Sets variables that functions of __main__ and cells see on all ranks, until `restart`, in place of the caller's."""
        with self._exclusive():
            Group.run(self, _task.put, values)
            self._put.setdefault(self._job.round, set()).update(values)

    def pull(self, name, ranks=None):
        """The values of an expression on all ranks, or on these."""
        return self.run(_task.pull, name, ranks=ranks)

    def interrupt(self):
        """From another thread, as Ctrl-C: the running call raises KeyboardInterrupt on all ranks, and here."""
        self._job.inbox.put(("interrupt", None))

    def stacks(self, ranks=None):
        """Where these ranks are, or all: the page of `ddrun stacks`, of this machine. May be called by all threads."""
        words = [find_ddrun(), "stacks", str(self._job.process.pid), *[f"--rank={ranks_text(ranks or ())}"] * bool(ranks)]
        return OWN_FRAME.sub("", subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout)

    def restart(self):
        """Starts all processes anew: forks of --preload's server, if there is one. Blocks until all are connected."""
        with self._exclusive():
            job, before, deadline = self._job, self._job.round, time.monotonic() + RESTART_AFTER
            job.restarting = True
            for peer in job.peers.values():
                job.send(peer, "exit")
            while job.status is None and job.round == before:
                if not job.take(deadline):  # a rank that holds Python's lock hears nothing
                    job.end(seconds=1)
            job.death = None
            if job.status is None:
                self._wait_until_ready()
            else:
                self._output.take_said()  # of the end of the job
                self._begin()

    def close(self, now=False):
        """Ends all processes; blocks until they are gone. now: does not wait for their own end, but sends SIGTERM."""
        if self._pid != os.getpid():
            return  # a fork: the group belongs to its parent
        atexit.unregister(self.close)
        self._job.end(() if now else self._job.peers.values())
        while self._job.status is None:
            self._job.take()
        self._output.show(True)

    def peers(self):
        """The ranks: objects with `rank`, `host` and `pid`, in their order. Raises RankDied if one has ended."""
        with self._exclusive():
            return [self._job.peers[rank] for rank in self._chosen(None)]

    def __repr__(self):
        job = self._job
        hosts = dict.fromkeys(peer.host for _, peer in sorted(job.peers.items()))
        return f"<Group: {len(job.peers)} ranks on {', '.join(hosts)}>" if job.status is None else "<Group: ended>"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close(now=kind is not None)

    @contextlib.contextmanager
    def _exclusive(self):
        if self._pid != os.getpid():
            raise RuntimeError(f"this group belongs to process {self._pid}, of which this one is a fork; make another group")
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("a call of this group runs in another thread; wait for it, or make another group")
        try:
            yield
        finally:
            self._lock.release()

    def _chosen(self, ranks):
        self._wait_until_ready()
        peers = self._job.peers
        chosen = list(dict.fromkeys(sorted(peers) if ranks is None else [ranks] if isinstance(ranks, int) else ranks))
        if unknown := set(chosen) - set(peers):
            raise ValueError(f"there is no rank {ranks_text(unknown)} here; there are {ranks_text(peers)}")
        return chosen

    def _begin(self):
        self._pid, self._streams, self._shown = os.getpid(), {"stdout", "stderr"}, set()  # _shown: marks of requests
        self._put = {}  # by round: names
        self._job = Job(self._options, self._output, cells=self.cells)
        self._job.set_idle(True)
        atexit.register(self.close, now=True)
        self._wait_until_ready()

    def _wait_until_ready(self):
        job = self._job
        if job.status is not None:
            raise RuntimeError("this group has ended; restart() begins it anew")
        while job.take(0):  # what has happened since the last call
            pass
        starting, deadline = not job.size, time.monotonic() + START_TIMEOUT
        try:
            while not (job.death or job.status is not None or job.size and len(job.peers) == job.size):
                if not job.take(deadline):
                    raise TimeoutError(f"not all ranks have connected within {START_TIMEOUT} s")
            if job.death or job.status is not None:
                raise self._dead()
        except BaseException:
            if starting:  # it would fail again
                self.close(now=True)
            raise

    def _dead(self, gone=None):
        """The exception for a rank that has ended, `gone` if it is known; ddrun starts all ranks anew meanwhile."""
        job, dead, deadline = self._job, self._job.round, time.monotonic() + RESTART_AFTER
        while not job.death and job.status is None and job.take(deadline):
            pass  # the reason comes after the end of the connection
        limit = time.monotonic() + 1  # ranks may die and start again all the time
        while time.monotonic() < limit and (job.take(min(time.monotonic() + 0.05, limit)) or job.lines):
            pass  # and the last output
        self._output.show(True)
        if gone and not job.death and job.status is None:  # no failure in the eyes of ddrun
            self.restart()
            error = left(gone)
        else:
            error = died(job)
        if self._job.status is None:
            add_note(error, "all ranks start anew; their variables are gone")
        if job.round == dead:
            job.peers, job.size = {}, 0
        job.death = None
        return error

    def _call(self, timeout):
        return Call(self, self._timeout if timeout is None else timeout)

    def _names(self):
        return frozenset(self._put.get(self._job.round, ()))

    def _show_until(self, number):
        """Shows what was printed before a request of a rank."""
        marks, deadline = {(number, stream) for stream in self._streams}, time.monotonic() + MARK_TIMEOUT
        while marks - self._shown and time.monotonic() < deadline:
            if not self._job.lines:
                time.sleep(0.001)
            elif (mark := self._job.show_line()) in marks:
                self._shown.add(mark)
            elif mark:
                self._job.inbox.put(("mark", mark))  # for the call
        self._streams -= {stream for _, stream in marks - self._shown}
        self._shown -= marks
        self._output.show(True)
