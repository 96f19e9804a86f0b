"""One coordinator and very many agents, all on this machine: coordinator."""

import json
import os
import signal
import statistics
import subprocess

from measuring import Comparison, Failure, wait_until

SECRET = "a secret for measuring alone"
IDLE = 3.0  # seconds


class Coordinator:
    """`ddrun rendezvous` in a process of its own."""

    def __init__(self, bench):
        self.output = open(os.path.join(bench.scratch, "coordinator"), "w+b")
        self.process = subprocess.Popen([bench.ddrun, "rendezvous", "--port=0", "--bind=127.0.0.1"],
                                        stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
                                        env={**bench.environment, "DDRUN_SECRET": SECRET}, cwd=bench.scratch)
        self.port = 0
        try:
            wait_until(self.listens, 30, "the start of the coordinator")
        except BaseException:
            self.stop()
            raise

    def listens(self):
        if self.process.poll() is not None:
            raise Failure(f"ddrun rendezvous ended: {self.said()}")
        words = self.said().split()
        if not words or ":" not in words[-1]:
            return False
        self.port = int(words[-1].rsplit(":", 1)[1])
        return True

    def said(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def private_bytes(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) * 1024

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()


def one_job(bench, agents, with_page):
    """A job of so many agents, from the first connect to the last verdict; the memory is looked at while it runs."""
    coordinator = Coordinator(bench)
    try:
        empty = coordinator.private_bytes()
        load = subprocess.Popen(
            [bench.agents_load, "--port", str(coordinator.port), "--agents", str(agents), "--secret", SECRET,
             "--idle", str(IDLE), "--step", "--json", *(["--page"] if with_page else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=bench.scratch)
        try:
            trouble = ""
            for line in load.stderr:
                if not line.startswith("phase "):
                    trouble += line
                    continue
                if line == ("phase page\n" if with_page else "phase fail\n"):
                    full = coordinator.private_bytes()
                load.stdin.write("\n")
                load.stdin.flush()
            output = load.stdout.read()
            if load.wait(60) != 0:
                raise Failure(f"agents_load: {trouble.strip()[-600:]} {coordinator.said()[-300:]}")
        finally:
            if load.poll() is None:
                load.kill()
                load.wait()
            for pipe in (load.stdin, load.stdout, load.stderr):
                pipe.close()
        return {**json.loads(output), "bytes_per_agent": (full - empty) / agents}
    finally:
        coordinator.stop()


def coordinator(bench, note):
    """agents of one job over loopback connections, authenticated, against one ddrun rendezvous"""
    rows = []
    for agents, join_goal, fail_goal in ((1000, 1.0, 0.1), (10000, 5.0, 1.0)):
        samples = []
        with_page = agents == 1000  # those of more are cut
        for i in range(bench.count(5, 2)):
            note(f"{agents} agents, {i + 1}")
            samples.append(one_job(bench, agents, with_page))

        def row(quantity, key, goal=None, **more):
            ours = [sample[key] for sample in samples]
            rows.append(Comparison(f"coordinator, {agents} agents", quantity, ours, goal=goal, at_most=True,
                                   ratio=statistics.median(ours) if goal is not None else None, **more))
        row("all have joined and their ranks", "join_s", join_goal)
        row("one has failed, all know it", "fail_s", fail_goal)
        row("all have stopped and the verdict", "end_s")
        if with_page:
            row("a page of their ranks, all answers", "page_s", 3.0)
            row("the same, merged", "merge_s")
            row("bytes of all answers", "page_bytes", scale=1 / 1024, unit="KiB")
            row("memory of the agent that asks", "page_memory", 64 * 1024 * 1024, scale=1 / 1024 / 1024, unit="MiB")
        row("memory of the coordinator, per agent", "bytes_per_agent", 20 * 1024, scale=1 / 1024, unit="KiB")
        for sample in samples:
            for phase in ("join", "fail", "end"):
                count = sample[f"{phase}_messages_in"] + sample[f"{phase}_messages_out"]
                sample[f"{phase}_messages"] = count / agents
        row("messages per agent, both ways: join", "join_messages", unit="")
        row("messages per agent, both ways: failure", "fail_messages", unit="")
        row("messages per agent, both ways: end", "end_messages", unit="")
        row("packets that an idle agent sends per second", "idle_sent", 1.0, unit="")
        row("packets that an idle agent receives per second", "idle_received", unit="")
    return rows
