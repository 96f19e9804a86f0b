"""ipyparallel's engines as ranks of a ddrun job."""
import json
import os
import signal

from harness import PYTHON, Running, TorchTest, install, main, script, wait_until


class Engines(TorchTest):
    needs = ("ipyparallel",)

    def start(self, *args):
        """The cluster's starter, and what it has printed."""
        running = Running([PYTHON, script("ipp_cluster.py"), *args], cwd=self.tmp,
                          env={"PYTHONPATH": install(self.tmp / "site"), "IPYTHONDIR": self.tmp / "ipython"})
        self.addCleanup(running.kill)
        facts = self.tmp / "facts.json"
        wait_until(lambda: facts.exists() or running.process.poll() is not None, 90, running.output)
        self.assertTrue(facts.exists(), running.output())
        return running, json.loads(facts.read_text())

    def engines(self, running):
        return [pid for pid, command in running.processes().items() if "ipyparallel.engine" in command]

    def test_cells(self):
        """Engine i is rank i; stopping the cluster leaves nothing."""
        running, facts = self.start()
        self.assertEqual(facts, {"ids": [0, 1, 2, 3], "ranks": [[rank, 4] for rank in range(4)], "squares": [0, 1, 4, 9],
                                 "options": [["-q", "--end-with-parent"], ["-q"]]})
        self.assertEqual(running.process.wait(60), 0, running.output())
        wait_until(lambda: not running.processes(), what=lambda: f"the end of {running.processes()}")

    def test_starter_is_killed(self):
        """Its engines end with it. The controller is ipyparallel's own."""
        running, _ = self.start("hold")
        self.assertTrue(self.engines(running))
        os.kill(running.process.pid, signal.SIGKILL)
        wait_until(lambda: not self.engines(running), what=lambda: f"the end of {running.processes()}")


if __name__ == "__main__":
    main()
