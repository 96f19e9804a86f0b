"""Processes driven from Python, beside ipyparallel and multiprocessing: notebook, pytest."""

import json
import os
import subprocess
import time

from measuring import HERE, Comparison, Failure, compare, descendants, in_turn, stat_fields
from preloading import needs_torch

DRIVER = os.path.join(HERE, "notebook_driver.py")
LEFT_LIMIT = 10  # seconds


def with_package(bench):
    """The environment of a Python that finds the package."""
    return {**os.environ, "PYTHONPATH": os.path.join(HERE, "..", "..", "python"), "DDRUN_PROGRAM": bench.ddrun}


@needs_torch
def notebook(bench, note, python):
    """A group of processes of Python: until it is ready, restarted with --preload, a cell, an exception, an interrupt."""
    environment = with_package(bench)

    def start(*words):
        return subprocess.Popen([python, DRIVER, *map(str, words)], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def side(name, count):
        def run():
            out, err = start(name, count).communicate(timeout=180)
            if not out.strip():
                raise Failure(err.strip().splitlines()[-1] if err.strip() else f"{name} printed nothing")
            return json.loads(out.splitlines()[-1])
        return run

    def killed():
        """From SIGKILL to the driver until its processes are gone."""
        driver = start("ddrun", 8, "kill")
        driver.stdout.readline()
        others = descendants(driver.pid)
        driver.kill()
        begin = time.monotonic()
        driver.communicate()
        while any((stat_fields(pid) or "Z")[0] != "Z" for pid in others):
            if time.monotonic() - begin > LEFT_LIMIT:
                raise Failure("processes are left")
            time.sleep(0.001)
        return time.monotonic() - begin

    rows = []
    for count in (4, 8):
        repeats = bench.count(5, 2)
        samples, trouble = in_turn({
            "ddrun": (repeats, side("ddrun", count)),
            "ddrun --preload": (repeats, side("ddrun --preload", count)),
            "ipyparallel": (bench.count(3, 1), side("ipyparallel", count)),
        }, note, settle=1)

        def row(name, quantity, ours, limits=(None, None), figure="ready", theirs="ready", rival="ipyparallel"):
            these = {"ddrun": [each[figure] for each in samples[ours]],
                     rival: [each[theirs] for each in samples["ipyparallel"] if theirs in each]}
            return compare(name, f"{count} ranks, {quantity}", these, trouble, {rival: limits}, scale=1e3, unit="ms")

        rows += row("notebook", "ready", "ddrun", (25, 15))
        rows += row("notebook", "restart with preload, against a start", "ddrun --preload", (100, 100), "restart")
        for figure in ("cell", "raise", "interrupt"):
            rows += row("notebook", figure, "ddrun", figure=figure, theirs=figure)
        rows += row("notebook", "map of 5,000 tiny items", "ddrun", (1, 1), "map", "map", "ProcessPoolExecutor")
    ends = [killed() for _ in range(bench.count(5, 2))]
    rows.append(Comparison("notebook", "8 ranks, all gone after kill -9 of the caller", ends, scale=1e3, unit="ms"))
    return rows


# Tests that do nothing, in one process or in four; the last ones start these for each test.
TESTS = {
    "ddrun": "import pytest\n" + "".join(f"@pytest.mark.ranks(4)\ndef test_{number}(): pass\n" for number in range(100)),
    "unmarked": "".join(f"def test_{number}(): pass\n" for number in range(100)),
    "multiprocessing": "import multiprocessing\ndef work(): pass\n" + "".join(f"""
def test_{number}():
    started = [multiprocessing.get_context("spawn").Process(target=work) for _ in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0
""" for number in range(100)),
    "thousand": "".join(f"def test_{number}(): pass\n" for number in range(1000)),
}


@needs_torch
def pytest(bench, note, python):
    """pytest with tests on 4 ranks, beside tests on none; and what the package costs tests on none."""
    environment = with_package(bench)

    def side(name, *plugin):
        path = os.path.join(bench.scratch, f"test_{name}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(TESTS[name])
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, path]
        return lambda: bench.run(command, limit=120, environment=environment)["seconds"]

    plugin, repeats = ("-p", "ddrun_pytest"), bench.count(9, 2)
    samples, trouble = in_turn({"ddrun": (repeats, side("ddrun", *plugin)), "unmarked": (repeats, side("unmarked")),
                                "multiprocessing": (bench.count(3, 1), side("multiprocessing"))}, note)
    rows = compare("pytest", "100 tests on 4 ranks", samples, trouble, {"unmarked": (0.1, 1 / 30), "multiprocessing": (10, 3)})
    samples, trouble = in_turn({"ddrun": (3 * repeats, side("thousand", *plugin)), "without ddrun": (3 * repeats, side("thousand"))},
                               note)
    return rows + compare("pytest", "1,000 tests on none", samples, trouble, {"without ddrun": (0.99, 0.97)})
