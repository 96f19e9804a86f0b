"""PyTorch on several hosts: unmodified workers meet through ddrun's store, and again after a restart."""

import sys

from jobs import JobTest, SECRET
from netcase import DDRUN, HERE, main

sys.path.insert(0, str(HERE.parent / "torch"))
import harness  # noqa: E402


class Torch(JobTest):
    hosts = 2

    @classmethod
    def setUpClass(cls):
        harness.TorchTest.setUpClass.__func__(harness.TorchTest)  # skips where there is no PyTorch
        super().setUpClass()

    def run_script(self, name, *options):
        jobs = [host.start([DDRUN, "--nnodes=2", "--nproc-per-node=2", f"--rdzv-endpoint=h1:{29400}", "--rdzv-backend=c10d",
                            "--label=none", *options, harness.script(name)],
                           env={"DDRUN_SECRET": SECRET, "PATH": f"{harness.VENV}/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"})
                for host in self.bed.hosts]
        for job in jobs:
            self.assertEqual(job.wait(200), 0, self.said())
        return sorted("".join(job.out for job in jobs).splitlines())

    def test_allreduce(self):
        self.assertEqual(self.run_script("allreduce.py"), [f"rank {rank} of 4: 6" for rank in range(4)])

    def test_a_rank_that_dies_once(self):
        self.assertEqual(self.run_script("die_once.py", "--max-restarts=1"), [f"restarted, rank {rank}: 24" for rank in range(4)])


if __name__ == "__main__":
    main()
