"""Functions on all ranks of a ddrun job: `run` starts one for a call, a `Group` stays."""

import atexit
import collections
import itertools
import queue
import signal
import time

from ddrun import _worker
from ddrun._call import RESTART_AFTER, Call, payload
from ddrun._errors import add_note, died, from_rank
from ddrun._job import Job
from ddrun._output import Output, ranks_text

START_TIMEOUT = 600  # seconds


def run(fn, *args, nproc_per_node="auto", options=(), **kwargs):
    """Calls fn(*args, **kwargs) on each rank of a new job and returns the values in the order of ranks.

    nproc_per_node and options are those of the command line: options=["--hosts=a,b", "--max-restarts=3"]. If a rank
    fails, what the first one raised is raised here, or RankDied if its process was killed. Blocks until the job has ended.
    """
    values = launch(payload(fn, *args, **kwargs), [f"--nproc-per-node={nproc_per_node}", *options])
    return [values[rank] for rank in sorted(values)]


def launch(call, options, show=None):
    """Runs the call, made by `payload`, on each rank. A restart of the job runs it again. Returns the values by rank."""
    job, output = Job(options, once=True), Output(show)
    values, failure, death, last, interrupted, status = {}, None, {}, 0, False, None
    try:
        while status is None:
            try:
                item = next_item(job, output)
                if item[0] == "hello":
                    peer = item[1]
                    if peer.round > last:
                        values, failure, death, last = {}, None, {}, peer.round
                        ranks = range(peer.world_size if job.remote else peer.local_world_size)
                        output.set_ranks(ranks, peer.world_size)
                    values[peer.rank] = None  # if it ends well without an answer
                    job.send(peer, 1, call)
                elif item[0] == "answer" and item[1].round == last:
                    peer, (_, kind, content) = item[1:]
                    if kind == "value":
                        values[peer.rank] = content
                    else:
                        failure = failure or (content, peer.rank, peer.world_size, peer.host)
                elif item[0] == "event" and item[1]["event"] in ("failed", "lost"):
                    death = death or item[1]
                elif item[0] == "event" and item[1]["event"] == "restart":
                    output.write("stderr", f"ddrun: restarting: {item[1]['why']}\n")
                elif item[0] == "exit":
                    status = item[1]
            except KeyboardInterrupt:
                job.signal(signal.SIGINT)  # twice: ddrun kills all
                interrupted = True
    finally:
        job.end()
    output.show(True)
    if interrupted:
        raise KeyboardInterrupt
    if status == 0:
        output.show_said()
        return {rank: value and _worker.pickle.loads(value) for rank, value in values.items()}
    if failure:
        raise from_rank(*failure)
    raise died(death, output, status)


def next_item(job, output, deadline=None):
    """Shows what ranks print until there is another item; None at the deadline."""
    while True:
        if job.inbox.empty():
            output.flush()
        times = [moment for moment in (deadline, output.deadline()) if moment is not None]
        try:
            item = job.inbox.get(timeout=max(0, min(times) - time.monotonic()) if times else None)
        except queue.Empty:
            output.show()
            if deadline is not None and time.monotonic() >= deadline:
                return None
            continue
        if item[0] != "line":
            return item
        if (number := output.line(*item[1:])) is not None:
            return "mark", (number, item[2])


class Group:
    """Processes of one job that run one call after the other. For one thread, but for `interrupt`.

    nproc_per_node, hosts, preload and options are those of the command line: Group(8, hosts="a,b", preload="torch").
    show(stream, text) gets what ranks print, by default it goes to stdout and stderr. A rank that dies makes the call raise
    RankDied and all ranks start anew. A group ends with `close`, at the end of a `with` block, and with this process.
    """

    cells = False  # of a notebook

    def __init__(self, nproc_per_node="auto", hosts=None, preload=None, options=(), show=None):
        def words(value):
            return value if isinstance(value, str) else ",".join(value)

        self._options = [f"--nproc-per-node={nproc_per_node}", "--max-restarts=1000000", "--same-cause=0",
                         f"--no-restart-on={_worker.NOT_CONNECTED}"]
        self._options += [f"--hosts={words(hosts)}"] if hosts else []
        self._options += [f"--preload=_rank,cloudpickle,{'ddrun._cells,' * self.cells}{words(preload)}"] if preload else []
        self._options += options
        self._output, self._numbers = Output(show), itertools.count(1)
        self._begin()

    def run(self, fn, *args, ranks=None, **kwargs):
        """Calls fn(*args, **kwargs) on all ranks, or on these, and returns the values in their order.

        What the first rank to fail raises is raised here, after the other ranks have been interrupted. The processes stay;
        a process group of torch.distributed in which a rank could not be interrupted is ended on all ranks.
        """
        ranks = self._chosen(ranks)
        call = payload(fn, *args, **kwargs)
        return self._call({rank: collections.deque([(index, call)]) for index, rank in enumerate(ranks)}, len(ranks))

    def map(self, fn, *iterables):
        """[fn(*items) for items in zip(*iterables)], each on a rank that has nothing to do."""
        calls = collections.deque(enumerate(payload(fn, *items) for items in zip(*iterables)))
        return self._call(dict.fromkeys(self._chosen(None), calls), len(calls))

    def put(self, **values):
        """Sets variables that functions of __main__ and cells see on all ranks."""
        self.run(_worker.put, values)

    def pull(self, name, ranks=None):
        """The values of an expression on all ranks, or on these."""
        return self.run(_worker.pull, name, ranks=ranks)

    def interrupt(self):
        """From another thread, as Ctrl-C: the running call raises KeyboardInterrupt on all ranks, and here."""
        self._job.inbox.put(("interrupt", None))

    def restart(self):
        """Starts all processes anew: forks of --preload's server, if there is one. Blocks until all are connected."""
        self._restarting, before, deadline = True, self._round, time.monotonic() + RESTART_AFTER
        for peer in self._peers.values():
            self._job.send(peer, "exit")
        while self._status is None and self._round == before:
            if not self._take(deadline):  # a rank that holds Python's lock hears nothing
                self._job.end(seconds=1)
        self._death = None
        if self._status is None:
            self._wait_until_ready()
        else:
            self._output.take_said()  # of the end of the job
            self._begin()

    def close(self, now=False):
        """Ends all processes; blocks until they are gone. now: does not wait for their own end, but sends SIGTERM."""
        atexit.unregister(self.close)
        self._job.end(() if now else self._peers.values())
        while self._status is None:
            self._take(None)
        self._output.show(True)

    def peers(self):
        """The ranks: objects with `rank`, `host` and `pid`, in their order. Raises RankDied if one has ended."""
        return [self._peers[rank] for rank in self._chosen(None)]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close(now=kind is not None)

    def _chosen(self, ranks):
        self._wait_until_ready()
        chosen = sorted(self._peers) if ranks is None else [ranks] if isinstance(ranks, int) else list(ranks)
        chosen = list(dict.fromkeys(chosen))
        if unknown := set(chosen) - set(self._peers):
            raise ValueError(f"there is no rank {ranks_text(unknown)} here; there are {ranks_text(self._peers)}")
        return chosen

    # ---- the state: what _take has seen

    def _begin(self):
        self._job = Job(self._options, cells=self.cells)
        self._peers, self._round, self._size = {}, 0, 0
        self._death, self._status, self._restarting, self._streams = None, None, False, {"stdout", "stderr"}
        atexit.register(self.close, now=True)
        self._wait_until_ready()

    def _take(self, deadline):
        """The next item, None at the deadline; keeps the state."""
        item = next_item(self._job, self._output, deadline)
        kind, content = item[:2] if item else (None, None)
        if kind == "hello" and content.round >= self._round:
            if content.round > self._round:
                self._peers, self._round, self._restarting = {}, content.round, False
                self._size = content.world_size if self._job.remote else content.local_world_size
            self._peers[content.rank] = content
        elif kind == "event" and content["event"] in ("failed", "lost") and not self._restarting:
            if content["round"] >= self._round:
                self._death = self._death or content
        elif kind == "exit":
            self._status = content
        return item

    def _wait_until_ready(self):
        if self._status is not None:
            raise RuntimeError("this group has ended; restart() begins it anew")
        while self._take(0):  # what has happened since the last call
            pass
        starting, deadline = not self._size, time.monotonic() + START_TIMEOUT
        try:
            while not (self._death or self._status is not None or self._size and len(self._peers) == self._size):
                if not self._take(deadline):
                    raise TimeoutError(f"not all ranks have connected within {START_TIMEOUT} s")
            if self._death or self._status is not None:
                raise self._dead()
        except BaseException:
            if starting:  # it would fail again
                self.close(now=True)
            raise
        self._output.set_ranks(self._peers, self._size)

    def _dead(self, gone=None):
        """The exception for a rank that has ended, `gone` if it is known; ddrun starts all ranks anew meanwhile."""
        dead, deadline = self._round, time.monotonic() + RESTART_AFTER
        while not self._death and self._status is None and self._take(deadline):
            pass  # the reason comes after the end of the connection
        while self._take(time.monotonic() + 0.05):
            pass  # and the last output
        self._output.show(True)
        death = self._death
        if gone and not death and self._status is None:  # no failure in the eyes of ddrun
            death = {"why": f"rank {gone.rank} on {gone.host} exited with code 0", "rank": gone.rank, "host": gone.host,
                     "pid": gone.pid, "exit_code": 0}
            self.restart()
        error = died(death, self._output, self._status)
        if self._status is None:
            add_note(error, "all ranks start anew; their variables are gone")
        if self._round == dead:
            self._peers, self._size = {}, 0
        self._death = None
        return error

    def _call(self, queues, count):
        return Call(self, queues, count).run()

    def display(self, data, metadata):
        """What a cell shows that is not text."""
