"""docs/several-machines-failures.md, "Joining and leaving"."""

from jobs import INTERRUPT, JobTest
from netcase import main, wait_until


class Joining(JobTest):
    hosts = 3

    def verbs(self):
        return ["report", str(self.reports), "await", str(self.go_file)]

    def wait_for_ranks(self, ranks):
        """Until workers with these ranks run, in whatever attempt."""
        def running():
            found = []
            for host in self.bed.hosts:
                for seen in self.begun(host):
                    with open(f"/proc/{seen.pid}/environ", "rb") as file:
                        found += [int(text[5:]) for text in file.read().split(b"\0") if text.startswith(b"RANK=")]
            return sorted(found)
        def there():
            try:
                return running() == sorted(ranks)
            except (FileNotFoundError, ProcessLookupError):
                return False
        wait_until(there, 60, lambda: f"ranks {list(ranks)}\n{self.said()}")

    def test_a_node_joins_late(self):
        row = self.row("joins-late")
        options = ["--rdzv-conf=last_call_timeout=1"]
        jobs = self.start(*options, nnodes="2:3", hosts=self.bed.hosts[:2], verbs=self.verbs())
        self.wait_for_ranks(range(4))
        jobs["h3"] = self.ddrun(self.bed[3], *options, nnodes="2:3", verbs=self.verbs())
        self.wait_for_ranks(range(6))
        self.go()
        self.assertEqual([job.wait(60) for job in jobs.values()], [0, 0, 0], self.said())
        self.says(row, [jobs["h1"]])
        self.assertEqual(list(self.attempts()), [0], "a newcomer uses up no restart")

    def test_equal_node_ranks(self):
        """As where a batch script's shell replaced $SLURM_NODEID: the machine of the endpoint gets it."""
        step = {"SLURM_JOB_ID": 12, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_NODES": 3, "SLURM_STEP_NUM_TASKS": 3,
                "SLURM_STEP_NODELIST": "h[1-3]"}
        jobs = {host.name: self.ddrun(host, "--node-rank=0", verbs=["report", str(self.reports)],
                                      env={**step, "SLURM_NODEID": node, "SLURM_PROCID": node})
                for node, host in enumerate(self.bed.hosts)}
        self.assertEqual([job.wait(60) for job in jobs.values()], [0, 0, 0], self.said())
        self.assertEqual(self.attempts(), {0: list(range(6))})
        self.assertEqual(jobs["h1"].err, "")
        for node in (1, 2):
            self.assertEqual(jobs[f"h{node + 1}"].err, "ddrun: warning: node rank 0, which this machine asks for, is taken, "
                             f"and it gets {node}; leave --node-rank out (SLURM_NODEID is {node})\n")

    def test_a_spare_is_not_needed(self):
        row = self.row("spare")
        jobs = self.start("--rdzv-id=spares", nnodes=2, hosts=self.bed.hosts[:2], verbs=self.verbs())
        self.wait_for_ranks(range(4))
        jobs["h3"] = self.ddrun(self.bed[3], "--rdzv-id=spares", nnodes=2, verbs=self.verbs())
        self.until(lambda: "spare" in jobs["h3"].err)
        self.go()
        self.ends(row, [jobs["h3"]], 0)
        self.assertRegex(jobs["h3"].err, "was not needed")
        self.assertEqual([job.wait(30) for job in jobs.values()], [0, 0, 0], self.said())

    def test_a_node_leaves(self):
        row = self.row("leaves")
        jobs = self.start(nnodes="1:3", verbs=self.verbs())
        self.wait_for_ranks(range(6))
        jobs["h2"].signal(INTERRUPT)
        self.ends(row, [jobs["h2"]], 130)
        self.wait_for_ranks(range(4))
        self.go()
        self.assertEqual([jobs["h1"].wait(30), jobs["h3"].wait(30)], [0, 0], self.said())
        self.assertEqual(list(self.attempts()), [0], "who leaves uses up no restart")

    def test_ctrl_c_on_one_host(self):
        row = self.row("ctrl-c")
        jobs = self.start(verbs=self.verbs())
        self.wait_for_ranks(range(6))
        jobs["h2"].signal(INTERRUPT)
        self.ends(row, jobs.values())

    def test_a_node_leaves_and_too_few_are_left(self):
        row = self.row("leaves-at-min")
        options = ["--rdzv-conf=last_call_timeout=1,join_timeout=10"]
        jobs = self.start(*options, nnodes="2:3", hosts=self.bed.hosts[:2], verbs=self.verbs())
        self.wait_for_ranks(range(4))
        jobs["h2"].signal(INTERRUPT)
        self.assertEqual(jobs["h2"].wait(40), 130, self.said())
        self.ends(row, [jobs["h1"]])

    def test_nodes_are_missing(self):
        row = self.row("missing")
        job = self.ddrun(self.bed[1], "--rdzv-conf=join_timeout=3", nnodes=2)
        self.ends(row, [job])


if __name__ == "__main__":
    main()
