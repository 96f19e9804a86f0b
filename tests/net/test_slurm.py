#!/usr/bin/env python3
"""ddrun inside of a real Slurm of four nodes."""

import json
import re
import time
import unittest

import slurm
from bed import wait_until
from netcase import ALLREDUCE, DDRUN, HERE, main

SECRET = {"DDRUN_SECRET": "a secret of this test, and of no other"}
WHO = 'echo "I am $RANK of $WORLD_SIZE on node $GROUP_RANK=$SLURM_NODEID, local $LOCAL_RANK, job $TORCHELASTIC_RUN_ID"'


def lines_of(text):
    """What the workers said, without the label in front, in order."""
    return sorted(re.sub(r"^\[[^]]*\] ", "", line) for line in text.splitlines() if "I am " in line)


class SlurmTest(unittest.TestCase):
    longMessage = True
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        obstacle = slurm.obstacle()
        if obstacle:
            raise unittest.SkipTest(obstacle)
        cls.cluster = slurm.Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        self.addCleanup(self._nothing_is_left)

    def _nothing_is_left(self):
        try:
            wait_until(lambda: not self.cluster.processes(), 20)
            left = []
        except AssertionError:
            left = self.cluster.processes()
        if left:
            self.cluster.run(["scancel", "--full", "--signal=KILL", "--user=root"])
            self.cluster.run(["scancel", "--user=root"])
            wait_until(lambda: not self.cluster.processes(), 30, lambda: self.cluster.processes())
        self.assertFalse(left, "left running")

    def srun(self, *words, env=None, seconds=60):
        return self.cluster.run(["srun", *words], seconds, {**SECRET, **(env or {})})


class InsideOfSrun(SlurmTest):
    def test_nothing_needs_to_be_said(self):
        done = self.srun("--nodes=4", DDRUN, "bash", "-c", WHO)
        self.assertEqual(done.returncode, 0, done.stderr)
        job = re.search(r"job (\S+)", done.stdout)[1]
        self.assertRegex(job, r"^slurm-\d+\.0$")
        self.assertEqual(lines_of(done.stdout), [f"I am {n} of 4 on node {n}={n}, local 0, job {job}" for n in range(4)])

    def test_the_step_counts_and_not_its_job(self):
        job = self.cluster.submit(f"#!/bin/bash\nsrun --nodes=2 --relative=2 {DDRUN} bash -c '{WHO}'\n", "--nodes=4",
                                  env=SECRET)
        self.assertEqual(self.cluster.end_of(job)["JobState"], "COMPLETED", self.cluster.said(job))
        self.assertEqual([line[:len("I am 0 of 2 on node 0=0")] for line in lines_of(self.cluster.said(job))],
                         ["I am 0 of 2 on node 0=0", "I am 1 of 2 on node 1=1"])

    def test_one_node_needs_no_secret_and_no_coordinator(self):
        done = self.cluster.run(["srun", "--nodes=1", DDRUN, "--nproc-per-node=2", "bash", "-c", WHO])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split(", job")[0] for line in lines_of(done.stdout)],
                         [f"I am {n} of 2 on node 0=0, local {n}" for n in range(2)])
        self.assertNotIn("slurm", done.stdout)

    def test_one_ddrun_for_each_rank_is_refused(self):
        done = self.srun("--nodes=2", "--ntasks=4", DDRUN, "true")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("srun started 4 ddruns on 2 nodes (SLURM_STEP_NUM_TASKS), and each would start workers of its own; "
                      "write: srun --nodes=2 --ntasks-per-node=1 ddrun --nproc-per-node=2 ...", done.stderr)
        each = self.srun("--nodes=1", "--ntasks=3", DDRUN, "--nnodes=1", "bash", "-c", WHO)
        self.assertEqual(each.returncode, 0, each.stderr)
        self.assertEqual([line.split(", job")[0] for line in lines_of(each.stdout)],
                         ["I am 0 of 1 on node 0=0, local 0"] * 3)

    def test_the_time_limit_leaves_workers_their_grace(self):
        # Newer Slurms set it themselves, and this job has no end.
        done = self.srun("--nodes=2", "env", f"SLURM_JOB_END_TIME={int(time.time()) + 20}", DDRUN, "bash", "-c",
                         "trap 'echo I am $RANK: stopped; exit 0' TERM; sleep 60 & wait")
        self.assertEqual(done.returncode, 124, done.stderr)
        self.assertEqual(lines_of(done.stdout), ["I am 0: stopped", "I am 1: stopped"])
        self.assertEqual(done.stderr.count("(SLURM_JOB_END_TIME): workers are stopped then"), 1, done.stderr)

    def test_an_agent_that_dies_ends_the_job_and_leaves_nothing(self):
        up = self.cluster.dir / "up"
        job = self.cluster.start(["srun", "--nodes=3", "--kill-on-bad-exit=0", DDRUN, "bash", "-c",
                                  f'touch {up}-$RANK; sleep 60'], SECRET)
        wait_until(lambda: all((self.cluster.dir / f"up-{n}").exists() for n in range(3)), 30)
        done = self.cluster.run(["bash", "-c", "kill -KILL $(pgrep -P $(pgrep --full --exact "
                                 f"'job-sweeper of .*' | tail -n 1) -x ddrun)"])
        self.assertEqual(done.returncode, 0, done.stderr)
        _, said = job.communicate(timeout=60)
        self.assertNotEqual(job.returncode, 0, said)


class WithoutASecret(SlurmTest):
    """The nodes share the home directory."""

    def srun(self, *words, env=None, seconds=60):
        return self.cluster.run(["srun", *words], seconds, env)

    def test_nothing_needs_to_be_said(self):
        """Four agents need a secret at the same instant; one makes it, and says so."""
        for said in (1, 0):
            done = self.srun("--nodes=4", DDRUN, "bash", "-c", WHO)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([line[:len("I am 0 of 4")] for line in lines_of(done.stdout)],
                             [f"I am {n} of 4" for n in range(4)])
            self.assertEqual(done.stderr.count("made a secret for jobs on several machines"), said, done.stderr)


class TheWorkerItself(SlurmTest):
    """srun starts the ranks of ddrun-allreduce, which is as good as a launcher for it."""

    def run_worker(self, *words, env=None):
        return self.cluster.run(["srun", *words, ALLREDUCE, "-b", "1K", "-e", "64K", "-f", "8", "-n", "2"], 60, env)

    def test_on_several_nodes(self):
        done = self.run_worker("--nodes=2", "--ntasks=4", env={"MASTER_ADDR": "n1", "MASTER_PORT": "20123"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ranks: 4  ", done.stdout)
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)

    def test_without_an_address(self):
        done = self.run_worker("--nodes=1", "--ntasks=2")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("srun --export=ALL,MASTER_ADDR=ADDRESS,MASTER_PORT=PORT ddrun-allreduce", done.stderr)


class FromAScript(SlurmTest):
    def script(self, command, *options, env=None):
        return self.cluster.submit(f"#!/bin/bash\n{command}\n", *options, env=env)

    def test_the_agents_are_started_through_srun(self):
        job = self.script(f"{DDRUN} --nproc-per-node=2 bash -c '{WHO}'; echo ended with $?", "--nodes=4")
        self.assertEqual(self.cluster.end_of(job)["JobState"], "COMPLETED", self.cluster.said(job))
        said = self.cluster.said(job)
        self.assertEqual([line[:len("I am 0 of 8")] for line in lines_of(said)], [f"I am {n} of 8" for n in range(8)])
        self.assertEqual(sorted(line.split()[7] for line in lines_of(said)),
                         ["0=0,", "0=0,", "1=1,", "1=1,", "2=2,", "2=2,", "3=3,", "3=3,"])
        self.assertIn("ended with 0", said)

    def test_the_example(self):
        train = self.cluster.dir / "train"
        train.write_text(f"#!/bin/bash\n{WHO}\n")
        train.chmod(0o755)
        script = (HERE.parents[1] / "configs/slurm/train.sbatch").read_text()
        job = self.cluster.submit(script, "--time=10:00", "--signal=USR1@60",
                                  env={"DDRUN": DDRUN, "LOGS": str(self.cluster.dir / "logs"), "TRAIN": str(train)})
        self.assertEqual(self.cluster.end_of(job)["JobState"], "COMPLETED", self.cluster.said(job))
        self.assertEqual([line.split(" on ")[0] for line in lines_of(self.cluster.said(job))],
                         [f"I am {rank} of 8" for rank in range(8)], self.cluster.said(job))
        self.assertTrue((self.cluster.dir / "logs" / job).is_dir())

    def test_the_nightly_check(self):
        script = (HERE.parents[1] / "configs/slurm/bandwidth.sbatch").read_text()
        folder = self.cluster.dir / "bandwidth"
        variables = {"DDRUN": DDRUN, "ALLREDUCE": ALLREDUCE, "RESULTS": str(folder),
                     "MIN_BYTES": "64K", "MAX_BYTES": "1M", "MIN_BUSBW": "0.0001"}

        def night(**changed):
            job = self.script(script.removeprefix("#!/bin/bash\n"), env={**variables, **changed})
            end = self.cluster.end_of(job, 120)
            return end["ExitCode"], self.cluster.said(job), folder / f"{job}.json"

        status, said, result = night()
        self.assertEqual(status, "0:0", said)
        first = json.loads(result.read_text())
        self.assertEqual(first["world_size"], 4)
        self.assertEqual([row["size"] for row in first["results"]], [65536, 262144, 1048576])
        status, said, result = night(MIN_BUSBW="100000")
        self.assertEqual(status, "3:0", said)
        self.assertIn("too slow: all_reduce of 1 MiB float sum", said)
        self.assertEqual(len(json.loads(result.read_text())["fell_short"]), 1)

    def test_tasks_of_the_job_do_not_limit_the_agents(self):
        job = self.script(f"{DDRUN} bash -c '{WHO}'", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=1")
        self.assertEqual(self.cluster.end_of(job)["JobState"], "COMPLETED", self.cluster.said(job))
        self.assertEqual(len(lines_of(self.cluster.said(job))), 2)

    def test_the_secret_is_in_no_command_line_and_no_worker(self):
        job = self.script(f"{DDRUN} bash -c 'ps -eo args; tr \"\\0\" \"\\n\" < /proc/$$/environ'", "--nodes=2",
                          env=SECRET)
        self.assertEqual(self.cluster.end_of(job)["JobState"], "COMPLETED", self.cluster.said(job))
        said = self.cluster.said(job)
        self.assertIn("srun --nodes=2", said)
        self.assertNotIn(SECRET["DDRUN_SECRET"], said)
        self.assertNotIn("DDRUN_STARTED_BY_SRUN", said)

    def test_salloc_gives_the_input_to_rank_0(self):
        done = self.cluster.run(["salloc", "--nodes=2", DDRUN, "bash", "-c", 'echo "I am $RANK: $(cat)"'], text="hello\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(lines_of(done.stdout), ["I am 0: hello", "I am 1: "])

    def start_patient(self, name, *options):
        """A job of two nodes whose workers tell of signals and then end; its number, once all of them are up."""
        folder = self.cluster.dir / name
        folder.mkdir()
        worker = folder / "worker.sh"
        worker.write_text('trap "echo I am $RANK: USR1 >> $0.said" USR1\n'
                          'trap "echo I am $RANK: stopped >> $0.said; exit 0" TERM INT\n'
                          'touch $0.up.$RANK\nwhile true; do sleep 0.1; done\n')
        job = self.script(f"exec {DDRUN} bash {worker}", "--nodes=2", *options)
        wait_until(lambda: len(list(folder.glob("*.up.*"))) == 2, 30, lambda: self.cluster.said(job))
        # From Slurm they hear of it twice: it tells all processes, and ddrun tells its workers.
        return job, folder / "worker.sh.said"

    def test_cancelling_the_job_stops_the_workers_in_order(self):
        job, told = self.start_patient("cancel")
        self.cluster.run(["scancel", job])
        self.assertEqual(self.cluster.end_of(job)["JobState"], "CANCELLED")
        wait_until(lambda: not self.cluster.processes(), 20, lambda: self.cluster.processes())
        self.assertEqual(sorted(set(lines_of(told.read_text()))), ["I am 0: stopped", "I am 1: stopped"])
        self.assertIn("SIGTERM", self.cluster.said(job))

    def test_a_signal_to_the_script_alone_stops_the_agents_in_order(self):
        job, told = self.start_patient("script")
        # As --signal=B:TERM@60 does.
        self.cluster.run(["scancel", "--batch", "--signal=TERM", job])
        end = self.cluster.end_of(job)
        self.assertEqual(end["ExitCode"], "0:15", self.cluster.said(job))  # the script is ddrun, which died of it
        self.assertEqual(sorted(set(lines_of(told.read_text()))), ["I am 0: stopped", "I am 1: stopped"])

    def test_other_signals_reach_the_workers(self):
        job, told = self.start_patient("usr1")
        # As --signal=USR1@60 does, and then --signal=B:USR1@60.
        for number, how in enumerate(([], ["--batch"])):
            self.cluster.run(["scancel", *how, "--signal=USR1", job])
            wait_until(lambda: told.exists() and len(lines_of(told.read_text())) >= 2 * (number + 1), 20,
                       lambda: self.cluster.said(job))
        self.cluster.run(["scancel", job])
        self.cluster.end_of(job)

    def test_a_killed_ddrun_leaves_no_agent(self):
        job, _ = self.start_patient("killed")
        done = self.cluster.run(["bash", "-c", "kill -KILL $(ps -o ppid= -p $(pgrep --oldest -x srun))"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.cluster.end_of(job)["JobState"], "FAILED")
        self.assertIn("ending the agents of Slurm step", self.cluster.said(job))
        # That they had their grace time cannot be said: Slurm ends what is left when the script is over.
        wait_until(lambda: not self.cluster.processes(), 20, lambda: self.cluster.processes())

    def test_a_requeued_job_is_a_new_one(self):
        job, _ = self.start_patient("requeue", "--requeue", "--open-mode=append")
        self.cluster.run(["scontrol", "requeuehold", job])
        wait_until(lambda: self.cluster.job(job)["JobState"] == "PENDING", 30)
        wait_until(lambda: not self.cluster.processes(), 20, lambda: self.cluster.processes())
        for file in (self.cluster.dir / "requeue").glob("*.up.*"):
            file.unlink()
        # slurmd takes credentials of the second in which it has revoked the job's for revoked ones.
        ended = int(time.time())
        wait_until(lambda: int(time.time()) > ended, 20)
        self.cluster.run(["scontrol", "release", job])
        self.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
        wait_until(lambda: len(list((self.cluster.dir / "requeue").glob("*.up.*"))) == 2, 30,
                   lambda: f"{self.cluster.job(job)}\n{self.cluster.said(job)}\n{self.cluster.log_of(job)}")
        self.assertEqual(self.cluster.job(job)["Restarts"], "1")
        step = self.cluster.run(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i"]).stdout.split()
        self.assertTrue(step)
        self.cluster.run(["scancel", job])
        self.cluster.end_of(job)


if __name__ == "__main__":
    main()
