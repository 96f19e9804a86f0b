"""Workers that have processes of their own: DataLoaders of every kind, mp.spawn. None of these is left behind."""
import json
import os
import signal

from harness import TorchTest, main, run_ddrun, script, wait_until
from ranks import facts_of_ranks


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


class Processes(TorchTest):
    def start(self, name, workers, ranks, *args):
        """A job that goes on for ever; it and the facts of its ranks, once all of them are at work."""
        folder = self.tmp / "held"
        folder.mkdir()
        running = self.start_ddrun([f"--nproc-per-node={workers}", "--shutdown-timeout=3", script(name), folder, "hold",
                                    *args], timeout=240)
        files = [folder / f"rank_{rank}.json" for rank in range(ranks)]

        def at_work():
            if running.process.poll() is not None:
                raise AssertionError(f"it ended: {running.wait()}")
            return all(file.exists() for file in files)
        wait_until(at_work, 200, "the ranks' files")
        return running, [json.loads(file.read_text()) for file in files]

    def kill(self, running, pid):
        self.assertIn(pid, running.processes())
        os.kill(pid, signal.SIGKILL)

    def assert_nothing_left(self, running):
        """By ddrun's own doing: `running` kills nothing before this was seen."""
        wait_until(lambda: not running.processes(), 30, "the end of all processes")


class DataLoaders(Processes):
    def test_every_sample_arrives(self):
        for rank, facts in enumerate(facts_of_ranks(self, run_ddrun, script("loaders.py"))):
            self.assertEqual(facts["rank"], rank)
            for method in ("fork", "spawn", "forkserver"):
                self.assertEqual(facts["samples"][method], list(range(24)))
                self.assertEqual(len(facts["workers"][method]), 1)
                self.assertNotIn(facts["pid"], facts["workers"][method])
                self.assertEqual(facts["makers"][method] == facts["pid"], method != "forkserver")

    def killed_loader(self, method):
        running, ranks = self.start("loaders.py", 1, 1, method)
        self.kill(running, ranks[0]["workers"][method][0])
        result = running.wait()  # fails if something is left
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("Traceback", result.err)
        self.assertIn("ddrun: error: rank 0 exited with code 1", result.err)

    def test_worker_made_by_fork_is_killed(self):
        self.killed_loader("fork")

    def test_worker_made_by_spawn_is_killed(self):
        self.killed_loader("spawn")

    def test_worker_made_by_forkserver_is_killed(self):
        self.killed_loader("forkserver")

    def test_rank_is_killed(self):
        running, ranks = self.start("loaders.py", 2, 2, "fork", "forkserver")
        self.kill(running, ranks[1]["pid"])
        result = running.wait()
        self.assertEqual(result.code, 128 + signal.SIGKILL, str(result))
        self.assertIn("ddrun: error: rank 1 was killed by SIGKILL", result.err)

    def test_agent_is_killed(self):
        running, ranks = self.start("loaders.py", 2, 2, "spawn", "forkserver")
        self.kill(running, ranks[0]["parent"])
        self.assert_nothing_left(running)
        self.assertEqual(running.wait().code, 125)


class Spawned(Processes):
    def test_training(self):
        ranks = facts_of_ranks(self, run_ddrun, script("spawning.py"), ranks=4)
        for rank, facts in enumerate(ranks):
            for name, expected in {"rank": rank, "world size": 4, "is_torchelastic_launched": True}.items():
                self.assertEqual(facts[name], expected)
            self.assertEqual(facts["parameters"], ranks[0]["parameters"])
            self.assertEqual(len(facts["losses"]), 4)
        self.assertEqual(len({facts["parent"] for facts in ranks}), 2)

    def test_guard_is_killed(self):
        running, _ = self.start("spawning.py", 1, 2)
        self.kill(running, running.process.pid)
        self.assert_nothing_left(running)

    def test_spawned_process_is_killed(self):
        running, ranks = self.start("spawning.py", 1, 2)
        self.kill(running, ranks[1]["pid"])
        result = running.wait()
        self.assertEqual(result.code, 1, str(result))
        self.assertRegex(result.err, r"process \d terminated with signal SIGKILL|ProcessExitedException")


if __name__ == "__main__":
    main()
