"""An etcd of several members, each on a host of a bed."""

import re
import shutil

from bed import wait_until
from jobs import CONTINUE, KILL, STOP

CLIENT, PEER = 2379, 2380


def obstacle():
    """Why there can be no etcd here; empty if there can."""
    missing = [program for program in ("etcd", "etcdctl") if not shutil.which(program)]
    return f"{', '.join(missing)} not installed: run scripts/setup --tests" if missing else ""


class Etcd:
    """Its members are none of what a test has started, as far as the bed can see."""

    def __init__(self, hosts, folder):
        self.hosts, self._folder, self._members = hosts, folder, {}
        folder.mkdir()
        for host in hosts:
            self.start(host)
        self.wait_until_well()

    @property
    def endpoint(self):
        return ",".join(f"{host}:{CLIENT}" for host in self.hosts)

    def start(self, host):
        """For the first time, or once more with what it had."""
        peers = ",".join(f"{one}=http://{one.address}:{PEER}" for one in self.hosts)
        client, peer = (f"http://{host.address}:{port}" for port in (CLIENT, PEER))
        self._members[host] = self._own(host.start(
            ["etcd", f"--name={host}", f"--data-dir={self._folder / host.name}", f"--listen-client-urls={client}",
             f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
             f"--initial-cluster={peers}", "--unsafe-no-fsync", "--logger=zap", "--log-level=warn"]))

    def kill(self, host):
        member = self._members.pop(host)
        member.signal(KILL)
        member.wait(20)
        member.close()

    def stop(self, host):
        self._members[host].signal(STOP)

    def go_on(self, host):
        self._members[host].signal(CONTINUE)

    def wait_until_well(self):
        """All members answer, and a majority has agreed on it."""
        wait_until(lambda: self.ask("endpoint", "health")[0] == 0, 60, lambda: f"etcd\n{self}")

    def leader(self):
        def found():
            # endpoint, id, version, size, is leader, …
            lines = [[cell.strip() for cell in line.split(",")] for line in self.ask("endpoint", "status")[1].splitlines()]
            leaders = [host for host in self.hosts for cells in lines
                       if cells[0].startswith(f"{host}:") and cells[4] == "true"]
            return leaders[0] if len(leaders) == 1 else None
        return wait_until(found, 30, lambda: f"a leader of etcd\n{self}")

    def value(self, key):
        """Empty where there is none, or no answer."""
        return self.ask("get", key, "--print-value-only")[1].strip()

    def made_in(self, key):
        """The revision in which a key was made; 0 where there is none, or no answer."""
        found = re.search(r'"CreateRevision" : (\d+)', self.ask("get", key, "--write-out=fields")[1])
        return int(found[1]) if found else 0

    def ask(self, *words):
        """etcdctl, on a host of etcd's: its status and what it printed."""
        asked = self._own(self.hosts[0].start(
            ["etcdctl", "--command-timeout=3s", "--dial-timeout=2s", f"--endpoints={self.endpoint}", *words],
            env={"ETCDCTL_API": "3"}))
        try:
            asked.wait(30)
            return asked.code, asked.out
        finally:
            asked.close()

    def close(self):
        for member in self._members.values():
            member.close()
        self._members.clear()

    @staticmethod
    def _own(started):
        started.host.bed.started.remove(started)
        return started

    def __str__(self):
        return "\n".join(map(str, self._members.values()))

