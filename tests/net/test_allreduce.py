"""ddrun-allreduce on several hosts with several ranks each: shared memory inside each host, tcp between them."""

import re
import signal

from bed import wait_until
from jobs import JobTest, SECRET
from netcase import ALLREDUCE, DDRUN, main


class AllReduce(JobTest):
    hosts = 3

    def start_all(self, *options, ranks=2, through=()):
        command = [DDRUN, f"--nnodes={self.hosts}", f"--nproc-per-node={ranks}", "--rdzv-endpoint=h1:29400",
                   "--label=none", *through, ALLREDUCE, *options]
        return [host.start(command, env={"DDRUN_SECRET": SECRET}) for host in self.bed.hosts]

    def table(self, *options, ranks=2):
        jobs = self.start_all(*options, ranks=ranks)
        for job in jobs:
            self.assertEqual(job.wait(100), 0, str(job))
        table = jobs[0].out
        self.assertIn("# Out of bounds values : 0 OK", table)
        return table

    def test_two_levels(self):
        table = self.table("-b", "8", "-e", "4M", "-f", "16", "-n", "3")
        self.assertRegex(table, r"backend: shm\+tcp")
        self.assertIn("3 hosts with 2 ranks each", table)

    def test_every_collective_in_two_levels(self):
        collectives = ["all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send_recv"]
        table = self.table(f"--collective={','.join(collectives)}", "-b", "256", "-e", "4M", "-f", "128", "-n", "2")
        self.assertRegex(table, r"backend: shm\+tcp")
        self.assertEqual(re.findall(r"^# ([a-z]+_[a-z_]+|gather|scatter)$", table, re.MULTILINE), collectives)
        # What was chosen for each.
        chosen = re.search(r"^# backend +: (.*)$", table, re.MULTILINE)[1]
        for collective in ["all_reduce", *collectives]:
            self.assertRegex(chosen, rf"\b{collective}\b")
        self.assertRegex(chosen, r"all_to_all: (blocks of a host together|straight)")

    def test_one_rank_on_each_host(self):
        self.assertRegex(self.table("-b", "8", "-e", "1M", "-f", "64", "-n", "3", ranks=1), r"backend: tcp\b")

    def test_flat(self):
        self.assertRegex(self.table("--backend=tcp", "-b", "8", "-e", "1M", "-f", "64", "-n", "3"), r"backend: tcp\b")

    def test_a_killed_rank_is_named_on_every_host(self):
        # Deaf to SIGTERM, as ddrun would end the others before they could say what they saw.
        jobs = self.start_all("-b", "1M", "-e", "1M", "-n", "1000000000", "--timeout", "60s",
                              through=("sh", "-c", 'trap "" TERM; exec "$0" "$@"'))
        wait_until(lambda: "redop" in jobs[0].out, 30, lambda: str(jobs[0]))
        self.bed[3].signal("worker", signal.SIGKILL)
        for job in jobs:
            self.assertNotEqual(job.wait(40), 0, str(job))
        said = "".join(job.err for job in jobs)
        named = set(re.findall(r"ddrun-allreduce: error: rank \d+: (rank \d+ is gone)", said))
        self.assertEqual(len(named), 1, said)
        self.assertIn(named.pop(), ("rank 4 is gone", "rank 5 is gone"), said)


if __name__ == "__main__":
    main()
