"""Random kills, one after the other: of workers, agents, guards and sweepers, and whole machines. Whatever is hit, the job
goes on or ends everywhere, and nothing is left. DDRUN_NET_KILLS=N (12) tries more of them, DDRUN_NET_SEED=N the same ones
again."""

import os
import random
import time

from jobs import KILL, JobTest
from netcase import main, wait_until

KILLS = int(os.environ.get("DDRUN_NET_KILLS", "12"))
SEED = int(os.environ.get("DDRUN_NET_SEED", time.time_ns() % 1_000_000))
TARGETS = ["worker"] * 4 + ["agent"] * 3 + ["guard", "sweeper", "machine"]


class Kills(JobTest):
    hosts = 3

    def agent(self, host):
        return self.ddrun(host, "--max-restarts=100000", "--rdzv-conf=last_call_timeout=1,join_timeout=60",
                          "--heartbeat-interval=0.3", nnodes="1:3")

    def whole(self, before):
        """All hosts are in one round: six workers, none of those of before, who agree about it. Gives back who they are."""
        worlds, pids = set(), set()
        for host in self.bed.hosts:
            for seen in self.begun(host):
                try:
                    with open(f"/proc/{seen.pid}/environ", "rb") as file:
                        variables = dict(text.split(b"=", 1) for text in file.read().split(b"\0") if b"=" in text)
                except OSError:
                    return None
                worlds.add((variables.get(b"WORLD_SIZE"), variables.get(b"MASTER_PORT"),
                            variables.get(b"TORCHELASTIC_RESTART_COUNT")))
                pids.add(seen.pid)
        whole = len(pids) == 6 and len(worlds) == 1 and worlds.pop()[0] == b"6"
        return pids if whole and not pids & before else None

    def test_kills(self):
        chance = random.Random(SEED)
        jobs, before = {}, set()
        print(f"{KILLS} kills, seed {SEED}", flush=True)
        for number in range(KILLS):
            def started():
                # An agent that has ended is started again, as a service manager would; the coordinator's end ends all.
                for host in self.bed.hosts:
                    job = jobs.get(host.name)
                    if job is None or job.ended():
                        if job is not None:
                            self.assertNotIn(job.code, (0, 2), self.said())
                            left = [str(seen) for seen in host.processes()]
                            wait_until(lambda h=host: not h.processes(), 30, f"the end of {left} on {host}")
                            job.close()
                            self.bed.started.remove(job)
                        jobs[host.name] = self.agent(host)
                return self.whole(before)
            before = wait_until(started, 90, lambda: f"a whole job before kill {number}, seed {SEED}\n{self.state()}{self.said()}")
            host = chance.choice(self.bed.hosts)
            target = chance.choice(TARGETS)
            if target == "machine":
                host.crash()
                host.boot()
                jobs[host.name].wait(30)
            else:
                seen = [seen for seen in host.processes() if seen.role == target]
                if seen:
                    os.kill(chance.choice(seen).pid, KILL)
        for job in jobs.values():
            job.signal(15)
        for job in jobs.values():
            job.wait(60)

    def state(self):
        return "".join(f"{host}: {', '.join(str(seen) for seen in host.processes())}\n" for host in self.bed.hosts)


if __name__ == "__main__":
    main()
