"""ipyparallel's engines as ranks of a ddrun job."""
import json
import os
import signal
import tomllib

from harness import DDRUN, PYTHON, Running, TorchTest, main, script, wait_until
from documents import ROOT


class Engines(TorchTest):
    needs = ("ipyparallel",)

    def start(self, *args):
        """The cluster's starter, and what it has printed."""
        site = self.tmp / "site"  # as `pip install --target` leaves it
        metadata = site / "ddrun-0.dist-info"
        for folder in (metadata, site / "bin"):
            folder.mkdir(parents=True)
        (site / "ddrun").symlink_to(ROOT / "python/ddrun")
        (site / "bin/ddrun").symlink_to(DDRUN)
        (metadata / "METADATA").write_text("Name: ddrun\nVersion: 0\n")
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        (metadata / "entry_points.txt").write_text("".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups.items()))
        running = Running([PYTHON, script("ipp_cluster.py"), *args], cwd=self.tmp,
                          env={"PYTHONPATH": site, "IPYTHONDIR": self.tmp / "ipython"})
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
