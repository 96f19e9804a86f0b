"""Drives a group of processes as a notebook does: notebook_driver.py SIDE COUNT [kill], SIDE is ddrun, ddrun --preload or
ipyparallel. Prints seconds as JSON; with `kill` waits to be killed when all processes are busy."""

import json
import logging
import os
import signal
import statistics
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import ddrun
from ddrun import _cells

if sys.argv[1] == "ipyparallel":  # both sides have imported what they need when the clock starts
    import ipyparallel

ITEMS = 5000  # of map
SLEEP = 5  # seconds that other ranks sleep; ipyparallel waits for them


def sleep_or_raise(limit):
    import os
    import time
    if os.environ.get("RANK", os.environ.get("RANK_OF_ENGINE")) == "2":
        raise ValueError("of rank 2")
    time.sleep(limit)


def add_one(number):
    return number + 1


def seconds(function):
    begin = time.monotonic()
    function()
    return time.monotonic() - begin


class Ddrun:
    def __init__(self, count, preload=None):
        self.group = ddrun.Group(count, preload=preload)
        self.call(int)

    def cell(self, source):
        return self.group.run(_cells.run, source, 0, 1)

    def call(self, function, *args):
        return self.group.run(function, *args)

    def interrupt(self):
        os.kill(os.getpid(), signal.SIGINT)

    def close(self):
        self.group.close()


class Ipyparallel:
    def __init__(self, count):
        self.cluster = ipyparallel.Cluster(n=count, log_level=logging.ERROR)
        self.client = self.cluster.start_and_connect_sync()
        self.view = self.client[:]
        self.view.block = True
        self.call(int)
        for rank, engine in enumerate(self.client.ids):
            self.client[engine].execute(f"import os; os.environ['RANK_OF_ENGINE'] = '{rank}'", block=True)

    def cell(self, source):
        self.view.execute(source)

    def call(self, function, *args):
        return self.view.apply_sync(function, *args)

    def interrupt(self):  # as %%px --signal-on-interrupt
        self.client.send_signal(signal.SIGINT, block=True)

    def close(self):
        self.cluster.stop_cluster_sync()


def main(side, count, wait_for_kill):
    made = []
    make = {"ddrun": Ddrun, "ddrun --preload": lambda count: Ddrun(count, "json"), "ipyparallel": Ipyparallel}[side]
    result = {"ready": seconds(lambda: made.append(make(count)))}
    group = made[0]
    if wait_for_kill:
        threading.Timer(0.5, lambda: print("busy", flush=True)).start()
        group.call(time.sleep, 1000)
    if side == "ddrun --preload":
        time.sleep(1.5)  # workers for a restart are forked one second after a start
        result["restart"] = seconds(group.group.restart)
    else:
        group.cell("1+1")  # imports IPython on the ranks of ddrun
        result["cell"] = statistics.median(seconds(lambda: group.cell("1+1")) for _ in range(30))

        def fail():
            try:
                group.call(sleep_or_raise, SLEEP)
            except Exception:  # ipyparallel has one of its own
                pass

        items = range(ITEMS)
        pool = ProcessPoolExecutor(count) if side == "ipyparallel" else None  # ipyparallel's own map is slower
        run = (lambda: list(pool.map(add_one, items))) if pool else (lambda: group.group.map(add_one, items))
        run()  # starts the pool's processes
        result["map"] = statistics.median(seconds(run) for _ in range(3))
        if pool:
            pool.shutdown()
        result["raise"] = statistics.median(seconds(fail) for _ in range(3))
        if side == "ddrun":
            begun = []
            threading.Timer(0.5, lambda: (begun.append(time.monotonic()), group.interrupt())).start()
            try:
                group.call(time.sleep, 60)
            except KeyboardInterrupt:
                result["interrupt"] = time.monotonic() - begun[0]
        else:
            waiting = group.view.apply_async(time.sleep, 60)
            time.sleep(0.5)
            result["interrupt"] = seconds(lambda: (group.interrupt(), waiting.wait(30)))
    group.close()
    print(json.dumps(result), flush=True)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["kill"])
