#!/usr/bin/env python3
"""Jobs of several agents that hang: each shows where all ranks are, and who holds them up is the cause in every report.
DDRUN_TEST_SCENES: which of the scenes for three machines are run; without it all."""
import json
import os
import pathlib
import re
import signal
import socket
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]
import scenes  # noqa: E402
import test_scenes  # noqa: E402
from cases import main, wait_until  # noqa: E402
from running import DDRUN, Running  # noqa: E402
from test_hangs import Job  # noqa: E402

# Rank BAD hangs, the others wait for the store, for 2 s at most if LIMIT says so.
PROGRAM = """import os, socket, sys, time
def load_batch():
    print("stuck", flush=True)
    time.sleep(1000)
def barrier():
    store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    store.settimeout(float(os.environ["LIMIT"]) if "LIMIT" in os.environ else None)
    store.recv(1)
(load_batch if os.environ["RANK"] == os.environ["BAD"] else barrier)()
"""
LINE = "load_batch (job.py:4), sleeps"


class Machines(Job):
    def setUp(self):
        super().setUp()
        self.cwd = self.folder
        (self.folder / "job.py").write_text(PROGRAM)
        self.env["DDRUN_SECRET"] = "of-the-tests-6f1c2d98b0"

    def start_all(self, count, *args, program=("job.py",), options=({},), **env):
        """An agent for each of `count` machines; `options` of each, the last one's also for the rest."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        agents = []
        for node in range(count):
            own = options[min(node, len(options) - 1)]
            agents.append(Running([DDRUN, "-n", 2, f"--nnodes={count}", f"--rdzv-endpoint=127.0.0.1:{port}", f"--node-rank={node}",
                                   f"--report={self.folder}/{node}.json", *own, *args, *program],
                                  env={**self.env, **env}, cwd=self.cwd, timeout=100))
            self.addCleanup(agents[-1].kill)
        return agents

    def end_all(self, agents, code):
        results = [agent.wait() for agent in agents]
        for result in results:
            self.assertEqual(result.code, code, result)
        return results

    def report(self, node):
        return json.loads((self.folder / f"{node}.json").read_text())

    def waits_until_stuck(self, agents):
        wait_until(lambda: any("stuck" in agent.output()[0] for agent in agents), 30, what=lambda: [a.output() for a in agents])

    def check_cause(self, results, rank, node):
        """The page is shown once, on the first machine, and all name this rank."""
        page = re.compile(rf"ddrun: ranks \S+ wait for rank {rank} on \S+: {re.escape(LINE)}\n  where the ranks of the job are[,:]")
        for number, result in enumerate(results):
            self.assertEqual(len(page.findall(result.err)), 1 if number == 0 else 0, result)
            self.assertIn(f"rank {rank} held up the others: {LINE} (", result.err)
            cause = self.report(number)["cause"]
            culprit = cause["failed_first"] or cause["worker"]
            self.assertEqual((culprit["rank"], culprit["why"]), (rank, "held up the others: " + LINE))
            self.assertEqual(culprit["local_rank"], rank - 2 * node)
        groups = self.report(0)["attempts"][-1]["stacks"]
        self.assertEqual(sorted(rank for group in groups for rank in group["ranks"]), list(range(2 * len(results))))

    def test_stacks_on_any_machine(self):
        agents = self.start_all(2, BAD=3)
        self.waits_until_stuck(agents)
        for agent in agents:
            wait_until(lambda: "ranks 0-2 wait for rank 3" in self.ask(agent).stdout, 20, what=lambda: self.ask(agent))
            page = self.ask(agent).stdout
            self.assertRegex(page, rf"\Aranks 0-2 wait for rank 3 on \S+: {re.escape(LINE)}\nwhere the ranks of the job are:\n")
            some = self.ask(agent, "--rank=1").stdout
            self.assertRegex(some, r"\Awhere the ranks of the job are:\n  rank 1 on \S+")
            self.assertNotIn("rank 3", some)
            missing = self.ask(agent, "--rank=4")
            self.assertEqual((missing.returncode, missing.stderr), (1, "ddrun: error: no such rank runs in this job\n"))
            threads = self.ask(agent, "--all-threads").stdout
            for rank in range(4):
                self.assertRegex(threads, rf"\nrank {rank} \(pid \d+ python")
            page = json.loads(self.ask(agent, "--json").stdout)
            self.assertEqual([(each["rank"], len(each["threads"])) for each in page["ranks"]], [(rank, 1) for rank in range(4)])
            self.assertTrue(all(each["host"] for each in page["ranks"]))
        agents[0].process.terminate()
        self.end_all(agents, 143)

    def test_time_limit(self):
        for asks in (0, 1):
            with self.subTest(asks=asks):
                limits = [["--timeout=100s"], ["--timeout=100s"]]
                limits[asks] = ["--timeout=3s"]
                results = self.end_all(self.start_all(2, options=limits, BAD=3), 124)
                self.check_cause(results, 3, 1)

    def test_rank_that_waits_in_vain(self):
        # All others at once, on both machines.
        results = self.end_all(self.start_all(2, BAD=1, LIMIT=2), 1)
        self.assertIn("TimeoutError", results[0].err + results[1].err)
        for number, result in enumerate(results):
            self.assertIn(f"ddrun: error: rank 1 held up the others: {LINE} (", result.err)
            self.assertEqual(self.report(number)["cause"]["failed_first"]["rank"], 1)

    def test_quit(self):
        agents = self.start_all(2, BAD=2)
        wait_until(lambda: "ranks 0,1,3 wait for rank 2" in self.ask(agents[1]).stdout, 20, what=lambda: self.ask(agents[1]))
        agents[1].process.send_signal(signal.SIGQUIT)
        results = self.end_all(agents, 131)
        self.assertRegex(results[0].err, r"where the ranks of the job are[^:]*:\n  rank 2 on ")

    def test_coordinator_does_not_answer(self):
        agents = self.start_all(2, "--heartbeat-misses=20", BAD=3)
        self.waits_until_stuck(agents)
        wait_until(lambda: "rank 3" in self.ask(agents[1]).stdout, 20, what=lambda: self.ask(agents[1]))
        stopped = [pid for pid in agents[0].processes() if "ddrun" in pathlib.Path(f"/proc/{pid}/comm").read_text()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        asked = self.ask(agents[1])
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        page = asked.stdout
        self.assertRegex(page, r"\Arank 2 waits for rank 3 on \S+: " + re.escape(LINE), [asked, *[agent.output() for agent in agents]])
        self.assertIn("  (the coordinator did not answer within 3.4 s)\n  (the ranks of this machine only)\n", page)
        agents[0].process.terminate()
        self.end_all(agents, 143)


class Scenes(Machines, test_scenes.Scenes):
    """Those for three machines."""

    def run_scene(self, scene):
        mute = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(mute.close)
        server = "127.0.0.1:%d" % mute.getsockname()[1]
        agents = self.start_all(3, *scene.options, program=self.command(scene), SCENE_SERVER=server)
        pattern = scene.pattern(self.folder, server, host=r"\S+")
        pages = [""]

        def is_shown():
            asked = self.ask(agents[1])
            pages[0] = asked.stdout + asked.stderr
            return pattern.match(pages[0])
        wait_until(is_shown, 40, what=lambda: f"{scene.line!r}, {scene.also!r}:\n{pages[0]}\n{[a.output() for a in agents]}")
        agents[0].process.terminate()
        self.end_all(agents, 143)


for name in [each for each in dir(Scenes) if each.startswith("test_")]:
    scene = next((each for each in scenes.SCENES if name == "test_" + re.sub(r"\W+", "_", each.name)), None)
    if scene is None or scene.machines == 1:
        setattr(Scenes, name, None)


if __name__ == "__main__":
    main()
