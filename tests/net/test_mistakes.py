"""docs/several-machines-failures.md, "Mistakes"."""

import os
import pathlib

from jobs import PORT, JobTest
from netcase import DDRUN, main, wait_until

LISTEN = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    peer = server.accept()[0]
    peer.sendall(b"220 this is somebody else" + bytes(100))
    peer.close()
"""


class Mistakes(JobTest):
    hosts = 3

    def running(self, *options, **more):
        jobs = self.start(*options, nnodes=2, hosts=self.bed.hosts[:2], verbs=["await", str(self.go_file)], **more)
        self.wait_for_workers(self.bed.hosts[:2])
        return jobs

    def is_unharmed(self, jobs):
        self.assertFalse(any(job.ended() for job in jobs.values()), self.said())
        self.go()
        for job in jobs.values():
            self.assertEqual(job.wait(30), 0, self.said())

    def test_another_version(self):
        row = self.row("version")
        version = self.bed[1].run([DDRUN, "--version"]).out.split()[1].encode()
        program = pathlib.Path(DDRUN).read_bytes()
        self.assertIn(version, program)
        other = self.bed.dir / "ddrun"
        other.write_bytes(program.replace(version, b"9" + version[1:]))
        os.chmod(other, 0o755)
        jobs = self.running()
        self.ends(row, [self.ddrun(self.bed[3], nnodes=2, program=str(other))])
        self.is_unharmed(jobs)

    def test_two_claim_one_node_rank(self):
        row = self.row("rank-twice")
        def agent(host, rank):
            return self.ddrun(host, f"--node-rank={rank}", "--rdzv-backend=static", nnodes=3,
                              verbs=["await", str(self.go_file)])
        one, two = agent(self.bed[1], 0), agent(self.bed[2], 1)
        self.until(lambda: "waiting" in one.err and "waiting" in two.err)
        again = agent(self.bed[3], 1)
        self.ends(row, [again])
        third = agent(self.bed[3], 2)
        self.wait_for_workers()
        self.is_unharmed({"h1": one, "h2": two, "h3": third})

    def test_another_secret(self):
        row = self.row("other-secret")
        jobs = self.running()
        self.ends(row, [self.ddrun(self.bed[3], nnodes=2, env={"DDRUN_SECRET": "another sixteen bytes of secret"})])
        self.is_unharmed(jobs)

    def test_homes_that_are_not_shared(self):
        row = self.row("other-home")
        jobs = self.running(env={"DDRUN_SECRET": None, "HOME": str(self.bed[1].home)})
        self.ends(row, [self.ddrun(self.bed[3], nnodes=2, env={"DDRUN_SECRET": None})])
        self.assertIn(f"this machine's is {self.bed[1].home}/.config/ddrun/secret on h1", self.said())
        self.is_unharmed(jobs)

    def test_no_secret(self):
        row = self.row("no-secret")
        self.ends(row, [self.ddrun(self.bed[1], env={"DDRUN_SECRET": None, "HOME": "/proc"})])

    def test_other_options(self):
        row = self.row("disagree")
        jobs = self.running("--max-restarts=1")
        self.ends(row, [self.ddrun(self.bed[3], "--max-restarts=2", nnodes=2)])
        self.is_unharmed(jobs)

    def test_another_job(self):
        row = self.row("other-job")
        jobs = self.running()
        self.ends(row, [self.ddrun(self.bed[3], "--rdzv-id=theirs", nnodes=2)])
        self.is_unharmed(jobs)

    def test_a_name_that_does_not_resolve(self):
        row = self.row("no-name")
        jobs = self.start(f"--rdzv-endpoint=nowhere.example:{PORT}", "--rdzv-conf=join_timeout=3")
        self.ends(row, jobs.values())

    def test_a_name_with_the_addresses_of_two_machines(self):
        row = self.row("several-addresses")
        with open(self.bed.dir / "hosts", "a", encoding="ascii") as names:
            names.writelines(f"{host.address} both.example\n" for host in self.bed.hosts[:2])
        jobs = self.start(f"--rdzv-endpoint=both.example:{PORT}", hosts=self.bed.hosts[:2], nnodes="1:2",
                          verbs=["report", str(self.reports)])
        self.ends(row, jobs.values())
        self.assertEqual(self.attempts(), {}, "no worker has run")

    def test_the_port_is_taken(self):
        row = self.row("port-taken")
        other = self.bed[1].start(["python3", "-c", LISTEN, str(PORT)])
        wait_until(lambda: "listening" in other.out, 30, "somebody else")
        jobs = self.start("--rdzv-conf=join_timeout=3")
        self.ends(row, jobs.values())
        other.signal(9)
        other.wait(10)


if __name__ == "__main__":
    main()
