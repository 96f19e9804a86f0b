"""ddrun-allreduce on several hosts with several ranks each."""

import re
import signal

from bed import wait_until
from jobs import JobTest, SECRET
from netcase import ALLREDUCE, DDRUN, main


class AllReduce(JobTest):
    hosts = 3

    def start_all(self, *options, through=()):
        command = [DDRUN, f"--nnodes={self.hosts}", "--nproc-per-node=2", "--rdzv-endpoint=h1:29400",
                   "--label=none", *through, ALLREDUCE, *options]
        return [host.start(command, env={"DDRUN_SECRET": SECRET}) for host in self.bed.hosts]

    def table(self, *options):
        jobs = self.start_all(*options)
        for job in jobs:
            self.assertEqual(job.wait(100), 0, str(job))
        table = jobs[0].out
        self.assertIn("# Out of bounds values : 0 OK", table)
        return table

    def test_several_ranks_on_each_host(self):
        self.assertRegex(self.table("-b", "8", "-e", "4M", "-f", "16", "-n", "3"), r"backend: tcp\b")

    def test_every_collective(self):
        collectives = ["all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send_recv"]
        table = self.table(f"--collective={','.join(collectives)}", "-b", "256", "-e", "4M", "-f", "128", "-n", "2")
        self.assertEqual(re.findall(r"^# ([a-z]+_[a-z_]+|gather|scatter)$", table, re.MULTILINE), collectives)

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
