"""All-reduce on a GPU through NCCL: one rank, and several that share its memory."""

import json
import os
import re
import subprocess

from calling import Sizes, seconds_of
from measuring import Comparison, Skip, in_turn
from reducing import MIB, PLACE, size_text

NAME = "gpu-allreduce"
ONE_RANK = Sizes(1024 * MIB, 1024 * MIB, 2, 20)
# NCCL rings of several ranks on one GPU are slow to start; these have a size for latency and one for bandwidth.
SEVERAL = (Sizes(8, 8, 2, 200), Sizes(256 * MIB, 256 * MIB, 2, 10))
SHARING_NCCL = (2, 30)


class Gpu:
    """Ranks of ddrun-allreduce on the first GPU."""

    def __init__(self, bench):
        self.bench = bench
        self.report = os.path.join(bench.scratch, "gpu.json")
        # Ranks share the first GPU even where there are more.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        self.environment = {**bench.environment, "CUDA_VISIBLE_DEVICES": first, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}

    def obstacle(self):
        """Why there is nothing to measure, or nothing."""
        tried = subprocess.run([self.bench.allreduce, "--backend=nccl", "-e", "8", "-n", "1"], capture_output=True, text=True,
                               timeout=120, env=self.environment, check=False)
        said = tried.stderr.strip().splitlines()
        return (said[-1] if said else f"ended with {tried.returncode}") if tried.returncode else ""

    def run(self, ranks, sizes):
        words = [self.bench.allreduce, "--backend=nccl", *sizes.options(), "-J", self.report]
        if ranks > 1:
            words = self.bench.ddrun_command(ranks, *words, options=("--no-python",))
        if os.path.exists(self.report):
            os.unlink(self.report)
        self.bench.run(words, limit=180.0, environment=self.environment)
        with open(self.report, encoding="utf-8") as file:
            return json.load(file)


def nccl_version(report):
    """(2, 28) of "NCCL 2.28.9, NVIDIA H200, buffers registered"."""
    found = re.match(r"NCCL (\d+)\.(\d+)", report["details"])
    return (int(found[1]), int(found[2])) if found else (0, 0)


def one_rank_rows(reports):
    """One rank has nothing to exchange: out of place NCCL makes one copy within the device, in place it does nothing."""
    rows = []
    size = reports[0]["results"][0]["size"]
    for placement, words in PLACE.items():
        quantity = f"one rank, {size_text(size)}, {words}"
        lacking = reports[0]["results"][0][placement]["lacking"]
        ours = [] if lacking else [seconds_of(report)[size, placement] for report in reports]
        rows.append(Comparison(NAME, quantity, ours, skipped=lacking or "", scale=1e6, unit="us"))
    return rows


def copy_rates(reports):
    """Bytes per second, read and written, of that copy."""
    size = reports[0]["results"][0]["size"]
    return [2 * size / seconds_of(report)[size, "out_of_place"] for report in reports]


def several_rows(ranks, reports, copies):
    """Ranks on one GPU share its memory: each rank's bytes are read once and written once at least."""
    rows = []
    for key in seconds_of(reports[0]):
        size, placement = key
        ours = [seconds_of(report)[key] for report in reports]
        least = [2 * ranks * size / rate for rate in copies]
        rows.append(Comparison(NAME, f"{ranks} ranks on one GPU, {size_text(size)}, {PLACE[placement]}", ours,
                               "copies on the device", least, scale=1e6, unit="us"))
    return rows


def gpu_allreduce(bench, note, one_rank=ONE_RANK, several=SEVERAL):
    """NCCL on one GPU, float sum: one rank, whose call is a copy within the device, and 2, 4 and 8 ranks beside it."""
    gpu = Gpu(bench)
    if why := gpu.obstacle():
        return [Comparison(NAME, "", [], skipped=why)]
    rounds = bench.count(5, 1)
    samples, _ = in_turn({"ddrun": (rounds, lambda: gpu.run(1, one_rank))}, note)
    reports = samples["ddrun"]
    rows = one_rank_rows(reports)
    copies = copy_rates(reports)
    version = nccl_version(reports[0])
    for ranks in (2, 4, 8):
        def side(count=ranks):
            if version < SHARING_NCCL:
                raise Skip(f"NCCL {version[0]}.{version[1]} does not let ranks share a GPU, 2.30 does (docs/allreduce.md)")
            return [gpu.run(count, sizes) for sizes in several]
        shared, trouble = in_turn({"several": (rounds, side)}, lambda text, count=ranks: note(f"{count} ranks {text}"))
        if trouble:
            rows.append(Comparison(NAME, f"{ranks} ranks on one GPU", [], skipped=trouble["several"]))
            if version < SHARING_NCCL:
                break
            continue
        for spans in zip(*shared["several"]):
            rows += several_rows(ranks, spans, copies)
    return rows
