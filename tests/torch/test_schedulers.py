"""configs/ray_job.py, dask_job.py and submitit_job.py, with two workers on each of two nodes."""
import subprocess
import sys

from harness import DDRUN, HERE, PYTHON, Running, TorchTest, VENV, main, wait_until
from documents import DOCS

sys.path.insert(0, str(HERE.parent / "net"))
import slurm  # noqa: E402

TRAIN = """
import os, pathlib, sys, time
rank, size, node = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "GROUP_RANK"))
pathlib.Path("{folder}", "rank_" + rank).write_text(f"{{rank}} of {{size}} on {{node}}")
"""
RANKS = ["0 of 4 on 0", "1 of 4 on 0", "2 of 4 on 1", "3 of 4 on 1"]
RAY = """
from ray.cluster_utils import Cluster
cluster = Cluster()
for _ in range(2):
    cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=10**8, include_dashboard=False)
print(cluster.address, flush=True)
input()
cluster.shutdown()
"""
DASK = """
from distributed import LocalCluster
with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
    print(cluster.scheduler_address, flush=True)
    input()
"""


class RecipeTest(TorchTest):
    def setUp(self):
        super().setUp()
        self.work = self.tmp / "work"  # which Ray copies
        self.work.mkdir()
        (self.tmp / "bin").mkdir()
        (self.tmp / "bin/ddrun").symlink_to(DDRUN)

    def write(self, name, train, last=None):
        """The program of configs/, with its last line in other words, and a train.py that ends with these."""
        text = (DOCS.parent / "configs" / name).read_text(encoding="utf-8")
        self.assertEqual(text.count("8"), 1, "GPUs")
        lines = text.replace("8", "2").splitlines()
        (self.work / name).write_text("\n".join(lines[:-1] + [last or lines[-1]]) + "\n")
        (self.work / "train.py").write_text(TRAIN.format(folder=self.tmp) + train)
        for file in self.tmp.glob("rank_*"):
            file.unlink()

    def ranks(self):
        return sorted(file.read_text() for file in self.tmp.glob("rank_*"))


class ClusterTest(RecipeTest):
    def start(self, *words, **variables):
        running = Running(words, cwd=self.work, stdin=subprocess.PIPE, timeout=200,
                          env={"PATH": f"{self.tmp}/bin:{VENV}/bin:/usr/bin:/bin", **variables})
        self.addCleanup(running.kill)
        self.addCleanup(running.process.stdin.close)
        return running

    def start_cluster(self, program, **variables):
        """It ends with its standard input; what it prints is its address."""
        self.cluster = self.start(PYTHON, "-c", program, **variables)
        wait_until(lambda: "\n" in self.cluster.output()[0], 60, self.cluster.output)
        return self.cluster.output()[0].split()[-1]

    def job(self):
        """Agents and ranks that run in the cluster."""
        return {pid: command for pid, command in self.cluster.processes().items() if command.endswith("train.py")}

    def wait_for_end(self):
        wait_until(lambda: not self.job(), 30, self.job)

    def check(self, name, *words, **variables):
        def start():
            return self.start(PYTHON, name, *words, **variables)

        self.write(name, "")
        self.assert_success(start().wait())
        self.assertEqual(self.ranks(), RANKS)
        self.write(name, "sys.exit(7) if rank == '3' else time.sleep(600)\n")
        failed = start().wait()
        self.assertNotEqual(failed.code, 0)
        self.assertRegex(failed.err, r"CalledProcessError: .* returned non-zero exit status 7\.")
        self.wait_for_end()
        return start

    def cancel(self, name, start, last):
        """A caller that goes on after it has cancelled the job."""
        self.write(name, "time.sleep(600)\n", f"input(); {last}; print('cancelled', flush=True); input()")
        caller = start()
        wait_until(lambda: self.ranks() == RANKS or caller.process.poll() is not None, 60, caller.output)
        self.assertEqual(self.ranks(), RANKS, caller.output())
        caller.process.stdin.write(b"\n")
        caller.process.stdin.flush()
        self.wait_for_end()
        wait_until(lambda: "cancelled" in caller.output()[0], 30, caller.output)


class Ray(ClusterTest):
    needs = ("ray",)

    def test_job(self):
        address = self.start_cluster(RAY, RAY_TMPDIR=self.tmp)
        start = self.check("ray_job.py", RAY_ADDRESS=address)
        self.cancel("ray_job.py", start, "ray.cancel(agents[0], force=True)")


class Dask(ClusterTest):
    needs = ("distributed",)

    def test_job(self):
        address = self.start_cluster(DASK)
        start = self.check("dask_job.py", address)
        self.cancel("dask_job.py", start, "client.cancel(agents); client.restart()")
        self.cancel("dask_job.py", start, "client.cancel(agents); client.shutdown()")


class Submitit(RecipeTest):
    needs = ("submitit",)

    def test_job(self):
        if obstacle := slurm.obstacle():
            self.skipTest(obstacle)
        with slurm.Cluster(2) as cluster:
            def run():
                return cluster.run(["env", "-C", self.work, PYTHON, "submitit_job.py"], 120,
                                   {"PATH": f"{self.tmp}/bin:{VENV}/bin:{cluster.variables['PATH']}"})

            self.write("submitit_job.py", "print('done')\n")
            done = run()
            self.assertEqual((done.returncode, done.stdout.count("done")), (0, 4), done.stderr)
            self.assertEqual(self.ranks(), RANKS)
            self.write("submitit_job.py", "sys.exit(7) if rank == '3' else time.sleep(600)\n")
            failed = run()
            self.assertNotEqual(failed.returncode, 0)
            self.assertIn("FailedJobError", failed.stderr)
            wait_until(lambda: not cluster.processes(), 30, cluster.processes)


if __name__ == "__main__":
    main()
