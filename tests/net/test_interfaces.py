"""Machines with several interfaces."""

import re

from jobs import JobTest
from netcase import main, wait_until


class Interfaces(JobTest):
    hosts = 2

    def tell(self, host, line):
        done = host.run(line.split())
        self.assertEqual(done.code, 0, str(done))
        return done.out

    def test_workers_come_to_the_store_from_another_interface_than_the_agent_to_the_coordinator(self):
        h1, h2 = self.bed.hosts
        self.tell(h2, "ip link add eth1 type veth peer name far1")
        self.tell(h2, "ip addr add 10.78.0.2/24 dev eth1")
        self.tell(h2, "ip link set eth1 up")
        self.tell(h2, "ip link set far1 up")
        # What begins on h2 comes to h1 from there, unless it binds another address, as the agent's option says.
        self.tell(h2, f"ip route add {h1.address}/32 dev eth0 src 10.78.0.2")
        self.tell(h1, f"ip route add 10.78.0.2/32 via {h2.address}")
        self.assertIn("src 10.78.0.2", self.tell(h2, f"ip route get {h1.address}"))
        # A name that the hosts file does not have.
        self.tell(h2, "hostname elsewhere")
        self.addCleanup(self.tell, h2, "hostname h2")
        jobs = {"h1": self.ddrun(h1, verbs=["count", "sum", "report", self.reports, "await", self.go_file]),
                "h2": self.ddrun(h2, f"--local-addr={h2.address}",
                                 verbs=["count", "sum", "env", "GLOO_SOCKET_IFNAME", "report", self.reports,
                                        "await", self.go_file])}
        self.wait_for_attempt(0, range(4))
        self.assertIn(h2.address + ":", self.tell(h1, "ss -Htn state established ( sport = :29400 )"), "the agent")
        self.go()
        self.assertEqual([job.wait(60) for job in jobs.values()], [0, 0], self.said())
        self.assertNotIn("not the address of a node", jobs["h1"].err)
        self.assertIn("GLOO_SOCKET_IFNAME=eth1", jobs["h2"].out, "the one that leads to MASTER_ADDR")

    def test_machines_that_meet_by_link_local_addresses(self):
        h1, h2 = self.bed.hosts
        at = re.search(r"fe80:[0-9a-f:]+", self.tell(h1, "ip -6 -o addr show dev eth0 scope link"))[0]
        for host in (h1, h2):  # a new address is tried out for a second
            wait_until(lambda host=host: "tentative" not in self.tell(host, "ip -6 addr show dev eth0"), 30, "the address")

        def start():
            return [self.ddrun(host, f"--rdzv-endpoint=[{at}%eth0]:29400", verbs=["count", "sum", "env", "MASTER_ADDR"])
                    for host in (h1, h2)]
        jobs = start()
        self.assertEqual([job.wait(60) for job in jobs], [0, 0], self.said())
        for job in jobs:
            self.assertIn(set(re.findall(r"MASTER_ADDR=(\S+)", job.out)), ({h1.address}, {h1.address6}), self.said())
        # With no other address.
        for host in (h1, h2):
            self.tell(host, "ip addr flush dev eth0 scope global")
            self.addCleanup(self.tell, host, f"ip addr add {host.address}/24 dev eth0")
            self.addCleanup(self.tell, host, f"ip -6 addr add {host.address6}/64 dev eth0 nodad")
        jobs = start()
        self.assertEqual([job.wait(60) for job in jobs], [125, 125], self.said())
        for job in jobs:
            self.assertRegex(job.err, "no address is known by which the other machines reach this one but fe80:")


if __name__ == "__main__":
    main()
