#!/usr/bin/env python3
"""Measures ddrun and its rivals side by side and prints a table. scripts/bench builds what is needed and calls this."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time

import coordinating
import failing_over
import gpu_reducing
import inspecting
import launching
import networking
import notebooks
import preloading
import reducing
import restarting
import storing
import training
import wiring
from measuring import Bench, Failure, as_json, print_table

BENCHMARKS = {
    "launch-noop-8": launching.launch_noop_8,
    "launch-1000": launching.launch_1000,
    "launch-10k-flat": launching.launch_10k_flat,
    "mpi-start": launching.mpi_start,
    "restart-local": restarting.restart_local,
    "log-mux": restarting.log_mux,
    "fold": restarting.fold,
    "terminals": restarting.terminals,
    "footprint": restarting.footprint,
    "create-reap-5000": launching.create_reap_5000,
    "preload-start": preloading.preload_start,
    "preload-restart": preloading.preload_restart,
    "preload-memory": preloading.preload_memory,
    "preload-leak": preloading.preload_leak,
    "stacks": inspecting.stacks,
    "stacks-pause": inspecting.stacks_pause,
    "ddp-run": training.ddp_run,
    "notebook": notebooks.notebook,
    "pytest": notebooks.pytest,
    "store-get": storing.store_get,
    "store-pipelined": storing.store_pipelined,
    "store-storm": storing.store_storm,
    "store-barrier": storing.store_barrier,
    "store-memory": storing.store_memory,
    "coordinator": coordinating.coordinator,
    "allreduce": reducing.allreduce,
    "allreduce-many": reducing.allreduce_many,
    "allreduce-tcp": wiring.allreduce_tcp,
    "collectives": reducing.collectives,
    "gpu-allreduce": gpu_reducing.gpu_allreduce,
    "network-start": networking.network_start,
    "network-restart": networking.network_restart,
    "network-stop": networking.network_stop,
    "network-idle": networking.network_idle,
    "network-failover": failing_over.network_failover,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ddrun", required=True)
    parser.add_argument("--helpers", required=True)
    parser.add_argument("--torchrun", default="")
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")

    os.makedirs(options.json, exist_ok=True)
    bench = Bench(options.ddrun, options.helpers, options.torchrun, options.repeats, options.quick)
    machine = {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "ddrun": subprocess.run([bench.ddrun, "--version"], capture_output=True, text=True, timeout=10,
                                check=True).stdout.splitlines()[0],
    }
    rows, failed = [], []
    try:
        for name in options.names or BENCHMARKS:
            function = BENCHMARKS[name]
            note = progress(name)
            load = os.getloadavg()[0]
            try:
                result = function(bench, note)
            except (Failure, OSError, subprocess.SubprocessError) as error:
                note("")
                print(f"{name}: failed: {error}", file=sys.stderr)
                failed.append(name)
                continue
            note("")
            print(f"{name}: {' '.join(function.__doc__.splitlines()[0].split())} (load {load:.1f})", flush=True)
            rows += result
            with open(os.path.join(options.json, name + ".json"), "w", encoding="utf-8") as file:
                json.dump({"name": name, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": machine,
                           "load": load, "results": [as_json(row) for row in result]}, file, indent=2)
                file.write("\n")
    finally:
        bench.close()
    print()
    print(f"{machine['ddrun']}; {machine['cpus']} CPUs, {machine['system']}. Ratios are of medians of runs in turn.")
    print_table(rows)
    return 1 if failed else 0


def progress(name):
    def note(text):
        if sys.stderr.isatty():
            print(f"\r\033[K{name} {text}" if text else "\r\033[K", end="", file=sys.stderr, flush=True)
    return note


if __name__ == "__main__":
    sys.exit(main())
