"""Workers that have processes of their own: DataLoaders of every kind. None of these is left behind."""
import json
import os
import signal

from harness import TorchTest, main, run_ddrun, script, wait_until
from ranks import facts_of_ranks


class DataLoaders(TorchTest):
    def start(self, *methods):
        """A job of two that goes on for ever; it and the facts of its ranks, once both of them are at work."""
        folder = self.tmp / "held"
        folder.mkdir()
        running = self.start_ddrun(["--nproc-per-node=2", "--shutdown-timeout=3", script("loaders.py"), folder, "hold",
                                    *methods], timeout=240)
        files = [folder / f"rank_{rank}.json" for rank in range(2)]

        def at_work():
            if running.process.poll() is not None:
                raise AssertionError(f"it ended: {running.wait()}")
            return all(file.exists() for file in files)
        wait_until(at_work, 200, "the ranks' files")
        return running, [json.loads(file.read_text()) for file in files]

    def kill(self, running, pid):
        self.assertIn(pid, running.processes())
        os.kill(pid, signal.SIGKILL)

    def test_every_sample_arrives(self):
        for rank, facts in enumerate(facts_of_ranks(self, run_ddrun, script("loaders.py"))):
            self.assertEqual(facts["rank"], rank)
            for method in ("fork", "spawn", "forkserver"):
                self.assertEqual(facts["samples"][method], list(range(24)))
                self.assertEqual(len(facts["workers"][method]), 1)
                self.assertNotIn(facts["pid"], facts["workers"][method])
                self.assertEqual(facts["makers"][method] == facts["pid"], method != "forkserver")

    def test_rank_is_killed(self):
        running, ranks = self.start("fork", "forkserver")
        self.kill(running, ranks[1]["pid"])
        result = running.wait()
        self.assertEqual(result.code, 128 + signal.SIGKILL, str(result))
        self.assertIn("ddrun: error: rank 1 was killed by SIGKILL", result.err)

    def test_agent_is_killed(self):
        running, ranks = self.start("spawn", "forkserver")
        self.kill(running, ranks[0]["parent"])
        # By ddrun's own doing: `running` kills nothing before this was seen.
        wait_until(lambda: not running.processes(), 30, "the end of all processes")
        self.assertEqual(running.wait().code, 125)


if __name__ == "__main__":
    main()
