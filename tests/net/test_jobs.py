"""Jobs on several hosts that go well."""

import re

from jobs import PORT, SECRET, JobTest
from netcase import DDRUN, WORKER, main


class Jobs(JobTest):
    hosts = 3

    def seen(self, jobs, name):
        """What the workers saw of a variable, in the order of hosts: their lines are "… NAME=value"."""
        return {host: re.findall(rf"\b{name}=(.*)", job.out) for host, job in jobs.items()}

    def test_who_is_who(self):
        names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
                 "TORCHELASTIC_RUN_ID", "DDRUN_SECRET"]
        jobs = self.start(verbs=[word for name in names for word in ("env", name)])
        for job in jobs.values():
            self.assertEqual(job.wait(60), 0, self.said())
        def values(name):
            return {host: sorted(found) for host, found in self.seen(jobs, name).items()}
        self.assertEqual(values("RANK"), {"h1": ["0", "1"], "h2": ["2", "3"], "h3": ["4", "5"]}, self.said())
        self.assertEqual(values("LOCAL_RANK"), {name: ["0", "1"] for name in jobs})
        self.assertEqual(values("WORLD_SIZE"), {name: ["6", "6"] for name in jobs})
        self.assertEqual(values("GROUP_RANK"), {"h1": ["0", "0"], "h2": ["1", "1"], "h3": ["2", "2"]})
        self.assertEqual(values("GROUP_WORLD_SIZE"), {name: ["3", "3"] for name in jobs})
        self.assertEqual(values("MASTER_ADDR"), {name: [self.bed[1].address] * 2 for name in jobs})
        self.assertEqual(values("TORCHELASTIC_RUN_ID"), {name: [f"job{self.number}"] * 2 for name in jobs})
        self.assertEqual(values("DDRUN_SECRET"), {name: ["(unset)"] * 2 for name in jobs}, "workers see no secret")

    def test_by_name_and_over_ipv6(self):
        for endpoint in ("h2", f"[{self.bed[2].address6}]"):
            with self.subTest(endpoint):
                args = [DDRUN, "--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint={endpoint}:{PORT}", "--rdzv-id=x",
                        "--rdzv-backend=c10d", "--", WORKER, "env", "MASTER_ADDR", "env", "RANK"]
                jobs = [host.start(args, env={"DDRUN_SECRET": SECRET}) for host in self.bed.hosts[:2]]
                for job in jobs:
                    self.assertEqual(job.wait(60), 0, self.said())
                # The coordinator's machine is node rank 0.
                self.assertIn("RANK=0", jobs[1].out, self.said())
                self.assertIn("RANK=1", jobs[0].out, self.said())
                address = self.bed[2].address if endpoint == "h2" else self.bed[2].address6
                for job in jobs:
                    self.assertIn(f"MASTER_ADDR={address}\n", job.out, self.said())

    def test_static_in_any_order(self):
        jobs = []
        for rank, host in ((2, self.bed[1]), (0, self.bed[2]), (1, self.bed[3])):
            args = [DDRUN, "--nnodes=3", "--nproc-per-node=1", f"--node-rank={rank}", f"--master-addr={self.bed[2].address}",
                    "--master-port=29500", "--", WORKER, "env", "RANK", "count", "k"]
            jobs.append((rank, host.start(args, env={"DDRUN_SECRET": SECRET})))
        for rank, job in jobs:
            self.assertEqual(job.wait(60), 0, self.said())
            self.assertIn(f"RANK={rank}\n", job.out, self.said())

    def test_the_secret_is_nowhere_to_be_seen(self):
        jobs = self.start()
        self.wait_for_workers()
        for host in self.bed.hosts:
            for seen in host.processes():
                with open(f"/proc/{seen.pid}/cmdline", "rb") as file:
                    self.assertNotIn(SECRET.encode(), file.read())
                if seen.role == "worker":
                    with open(f"/proc/{seen.pid}/environ", "rb") as file:
                        self.assertNotIn(SECRET.encode(), file.read())
        jobs["h1"].signal(15)
        for job in jobs.values():
            job.wait(60)
            self.assertNotIn(SECRET, job.out + job.err)


if __name__ == "__main__":
    main()
