"""Jobs on several hosts that go well."""

import re
import time

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

    def test_the_store_is_reached_from_everywhere(self):
        jobs = self.start(verbs=["count", "all"])
        for job in jobs.values():
            self.assertEqual(job.wait(60), 0, self.said())
        counts = [int(number) for found in self.seen(jobs, "all").values() for number in found]
        self.assertEqual(sorted(counts), [1, 2, 3, 4, 5, 6])

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

    def test_idle_costs_a_packet_a_second(self):
        jobs = self.start()
        self.wait_for_workers()
        def sent():
            """Packets with data in them that each agent has sent on its control connection, as the kernel counts them."""
            counts = []
            for host in self.bed.hosts[1:]:
                said = host.run(["ss", "-Htin", "state", "established", "dport", "=", f":{PORT}"]).out
                counts.append([int(number) for number in re.findall(r"\bdata_segs_out:(\d+)", said)])
            return counts
        began, before = time.monotonic(), sent()
        # What is looked at is what happens in a stretch of time: there is nothing to wait for.
        time.sleep(5)
        after, seconds = sent(), time.monotonic() - began
        for old, new in zip(before, after):
            self.assertEqual((len(old), len(new)), (1, 1), f"one connection to the coordinator: {before} {after}")
            # A ping each second, on average, and one answer to each.
            self.assertGreater(new[0], old[0], f"{before} {after}")
            self.assertLessEqual(new[0] - old[0], seconds + 2, f"{before} {after} in {seconds:.1f} s")
        jobs["h1"].signal(15)
        for job in jobs.values():
            job.wait(60)


if __name__ == "__main__":
    main()
