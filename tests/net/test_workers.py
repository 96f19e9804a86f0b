"""docs/several-machines-failures.md, "Workers"."""

from jobs import JobTest
from netcase import CLOCK_OFFSET, is_static, main


class Workers(JobTest):
    hosts = 3

    def set_clocks_apart(self):
        if obstacle := is_static():
            self.skipTest(obstacle)
        for host, seconds in zip(self.bed.hosts, (-3600, 3600, 0)):
            host.set_apart_clock(CLOCK_OFFSET)
            self.addCleanup(host.set_apart_clock, None)
            host.clock_jumps_to(seconds)

    def test_a_worker_fails(self):
        row = self.row("worker-fails")
        jobs = self.start(verbs=["rank", "3", "await", str(self.go_file), "exit", "7", ";", "stray", "forever", ";", "pause"])
        self.until(lambda: self.workers() == 11, "six workers and five of their children")
        self.go()
        self.ends(row, jobs.values(), 7)
        self.names_once(jobs["h2"], "rank 3", "h2", "7")

    def test_who_was_first_is_not_a_matter_of_clocks(self):
        row = self.row("first-cause")
        self.set_clocks_apart()
        verbs = ["on", "TERM", "9", "rank", "3", "await", str(self.go_file), "exit", "7", ";", "pause"]
        # By its own clock, h1's worker fails an hour before the one that is the cause.
        jobs = {host.name: self.ddrun(host, verbs=verbs) for host in self.bed.hosts}
        self.wait_for_workers()
        self.go()
        self.ends(row, jobs.values(), 7)

    def test_clocks_are_an_hour_apart(self):
        row = self.row("clocks")
        self.set_clocks_apart()
        jobs = {host.name: self.ddrun(host, verbs=["count", "sum"]) for host in self.bed.hosts}
        self.ends(row, jobs.values(), 0)
        self.assertIn("sum=6\n", "".join(job.out for job in jobs.values()))

    def test_some_have_finished(self):
        row = self.row("skew")
        jobs = self.start("--exit-skew=1", verbs=["rank", "2", "pause", ";", "rank", "3", "pause", ";"])
        self.ends(row, jobs.values())

    def test_a_host_that_fails_again_and_again(self):
        row = self.row("offender")
        first = self.bed.dir / "first"
        verbs = ["report", str(self.reports), "rank", "2", "attempt", "0", "await", str(first), "exit", "7", ";", "attempt",
                 "1", "exit", "7", ";", ";", "await", str(self.go_file)]
        options = ["--max-restarts=3", "--node-max-failures=2"]
        jobs = self.start(*options, nnodes=2, verbs=verbs, hosts=self.bed.hosts[:2])
        self.wait_for_attempt(0, [0, 1, 2, 3])
        spare = self.ddrun(self.bed[3], *options, nnodes=2, verbs=verbs)
        self.until(lambda: "spare" in spare.err)
        first.touch()
        self.ends(row, [jobs["h2"]])
        self.wait_for_attempt(2, [0, 1, 2, 3])
        self.assertEqual(len(self.begun(self.bed[3])), 2, self.said())
        self.go()
        self.assertEqual([jobs["h1"].wait(30), spare.wait(30)], [0, 0], self.said())

    def test_a_full_disk_on_one_node(self):
        row = self.row("full-disk")
        folder = self.bed[2].small_disk(64)
        jobs = {host.name: self.ddrun(host, f"--log-dir={folder}", "-t3", verbs=["lines", "2000"]) for host in self.bed.hosts}
        for name, job in jobs.items():
            self.assertEqual(job.wait(60), 125 if name == "h2" else 0, self.said()[-3000:])
            self.assertEqual(job.out.count("line 1999 of rank"), 2)
        self.says(row, [jobs["h2"]])

    def test_a_firewall(self):
        row = self.row("firewall")
        self.bed[1].block_all_but(29400)
        # The kernel tries to connect for two minutes; with one repetition for three seconds.
        self.assertEqual(self.bed[2].run(["sysctl", "-q", "-w", "net.ipv4.tcp_syn_retries=1"]).code, 0)
        jobs = self.start(verbs=["rank", "2", "count", "sum", ";", "pause"])
        self.ends(row, jobs.values(), 97)

    def test_a_firewall_with_one_port_open(self):
        self.bed[1].block_all_but(29400, 29600)
        jobs = self.start("--master-port=29600", verbs=["count", "sum"])
        for job in jobs.values():
            self.assertEqual(job.wait(60), 0, self.said())


if __name__ == "__main__":
    main()
