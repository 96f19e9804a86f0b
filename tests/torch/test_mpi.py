"""docs/mpi.md: real MPICH and mpi4py under --mpi. Each case checks the size of the world: N singletons succeed, too."""

import os
import shutil
import signal

from harness import DDRUN, MPI_PARTS, PYTHON, VENV, Running, TorchTest, main, mpi_parts, mpi_program, run_ddrun, script, wait_until
from documents import DOCS


def segments():
    return {name for name in os.listdir("/dev/shm") if name.startswith(("mpich_shm_", "mpich_vci_"))}


class Mpi(TorchTest):
    needs = ("mpi4py",)

    def setUp(self):
        super().setUp()
        self.expect_nothing_left(segments)

    def ranks(self, count, mode="", *options):
        return run_ddrun(["--mpi", f"-n{count}", *options, "--label=none", script("mpi_ranks.py"), *([mode] if mode else [])])

    def test_ranks_of_one_world(self):
        for count in (2, 4):
            for options in ((), ("--preload=json",)):
                with self.subTest(count=count, options=options):
                    result = self.ranks(count, "", *options)
                    line = f"size {count} sum {count * (count + 1) // 2} local {count} machines 1 attempt 0"
                    self.assertEqual(result.out.splitlines(), [line] * count, result.err)
                    self.assertEqual((result.code, result.err), (0, ""))

    def test_a_linked_program_needs_no_option(self):
        program = mpi_program(self.tmp)
        result = run_ddrun(["-n3", "--label=none", program])
        self.assertEqual(result.out.splitlines(), ["size 3 sum 3"] * 3, result.err)
        alone = run_ddrun(["-n2", "--mpi=none", "--label=none", program])
        self.assertEqual(alone.out.splitlines(), ["size 1 sum 1"] * 2, alone.err)

    def test_several_programs_are_one_world(self):
        result = run_ddrun(mpi_parts("--mpi"))
        self.assertEqual(sorted(result.out.splitlines()), MPI_PARTS, result.err)
        self.assertEqual((result.code, result.err), (0, ""))
        program = mpi_program(self.tmp)
        linked = run_ddrun(["--label=none", "-n2", program, ":", "-n1", "echo", "no MPI", ":", "-n1", program])
        self.assertEqual(sorted(linked.out.splitlines()), ["no MPI"] + ["size 3 sum 3"] * 3, linked.err)
        ranks = script("mpi_ranks.py")
        abort = run_ddrun(["--mpi", ":", "-n1", "--role=a", ranks, ":", "-n2", "--role=b", ranks, "abort7"])
        self.assertEqual(abort.code, 7, abort.err)
        self.assertIn("b rank 1 called MPI_Abort(7) after ", abort.err)
        two = run_ddrun(["--world=a", "-n2", program, ":", "--world=b", "-n2", program])
        self.assertEqual(two.code, 2)
        self.assertIn("two worlds of MPI in one job", two.err)
        none = run_ddrun(["--world=a", "-n2", program, ":", "--world=a", "--mpi=none", "-n2", program])
        self.assertEqual(none.code, 2)
        self.assertIn("hello-2 has --mpi=none, and its world a is one of MPI", none.err)

    def test_abort_is_the_cause(self):
        for number, status in (("37", 37), ("0", 1), ("256", 1)):
            with self.subTest(number=number):
                result = self.ranks(3, "abort" + number, "--success-on=0,37")
                self.assertEqual(result.code, status, result.err)
                self.assertIn(f"rank 1 called MPI_Abort({number}) after ", result.err)
                self.assertIn("others:  ranks 0,2 stopped by ddrun", result.err)
                self.assertNotIn("signal sent from outside", result.err)

    def test_a_rank_that_leaves_the_others_waiting_is_named(self):
        for mode, said in (("early", "ended without MPI_Init"), ("unfinished", "ended without MPI_Finalize")):
            with self.subTest(mode=mode):
                result = self.ranks(2, mode)
                self.assertEqual(result.code, 1, result.err)
                self.assertRegex(result.err, f"rank 1 {said}")

    def test_a_rank_may_leave_at_once_after_finalize(self):
        result = self.ranks(3, "finalize then leave")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.out.count("worked on"), 2)

    def test_a_restart_is_a_new_world(self):
        result = self.ranks(2, "fail once", "--max-restarts=1")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(sorted(result.out.splitlines()), [f"size 2 sum 3 local 2 machines 1 attempt {i}" for i in (0, 0, 1, 1)])

    def test_nothing_is_left_after_a_kill(self):
        code = "from mpi4py import MPI; import time; MPI.COMM_WORLD.Barrier(); print('up'); time.sleep(60)"
        for victim in ("guard", "sweeper", "agent", "rank"):
            with self.subTest(victim=victim):
                job = Running([DDRUN, "--mpi", "-n2", PYTHON, "-u", "-c", code])
                wait_until(lambda: job.output()[0].count("up") == 2, what=job.output)  # noqa: B023
                chain = [job.process.pid]
                while len(chain) < 4:
                    with open(f"/proc/{chain[-1]}/task/{chain[-1]}/children", encoding="ascii") as children:
                        chain.append(int(children.read().split()[0]))
                os.kill(chain[("guard", "sweeper", "agent", "rank").index(victim)], signal.SIGKILL)
                wait_until(lambda: not job.processes(), what=job.output)  # noqa: B023
                self.assertNotEqual(job.wait().code, 0)

    def test_a_ddrun_in_a_worker_is_a_job_apart(self):
        inner = [DDRUN, "--label=none", "-n2"]
        mpi = run_ddrun(["--mpi", "-n2", "--label=none", *inner, "--mpi", script("mpi_ranks.py")])
        self.assertEqual(mpi.out.splitlines(), ["size 2 sum 3 local 2 machines 1 attempt 0"] * 4, mpi.err)
        other = run_ddrun(["--mpi", "-n2", "--label=none", *inner, "sh", "-c", "echo $LOCAL_RANK$PMI_PORT$PMI_ID$PMI_RANK"])
        self.assertEqual(sorted(other.out.splitlines()), ["0", "0", "1", "1"], other.err)

    def test_mpiexec_in_a_worker_is_seen(self):
        code = "from mpi4py import MPI; print(f'{MPI.COMM_WORLD.allreduce(1)}\\n', end='')"
        for mpi in ("pmi", "none"):
            with self.subTest(mpi=mpi):
                mpiexec = [f"--mpi={mpi}", "-n1", "--label=none", str(VENV / "bin/mpiexec"), "-n", "2"]
                ranks = run_ddrun([*mpiexec, PYTHON, "-c", code])
                self.assertEqual(ranks.out.split(), ["2", "2"], ranks.err)
                refused = run_ddrun([*mpiexec, DDRUN, "true"])
                self.assertNotEqual(refused.code, 0)
                self.assertIn("mpirun started 2 ddruns, 2 of them here", refused.err)

    def test_torch_over_mpi4py(self):
        for file in (DOCS.parent / "configs/mpi_backend.py", script("mpi_backend_ranks.py")):
            shutil.copy(file, self.tmp)
        result = run_ddrun(["--mpi", "-n2", "--label=none", "mpi_backend_ranks.py"], cwd=self.tmp)
        self.assertEqual(result.out.splitlines(), ["right on 2"] * 2, result.err)
        self.assertEqual((result.code, result.err), (0, ""))

    def test_nobody_asked(self):
        result = run_ddrun(["--mpi=pmi", "-n2", "true"])
        self.assertEqual(result.code, 0)
        self.assertIn("warning: no worker used PMI: 2 separate worlds?", result.err)


if __name__ == "__main__":
    main()
