"""The test bed itself: what the other tests here rely on."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import bed as beds
from netcase import DDRUN, WORKER, NetTest, main, wait_until

LISTEN = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
peer = server.accept()[0]
while data := peer.recv(1 << 16):
    print(len(data), flush=True)
"""
SEND = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
print("connected", flush=True)
for line in sys.stdin:
    pass
"""


class Hosts(NetTest):
    hosts = 3

    def test_each_has_its_own_name_addresses_processes_and_memory(self):
        for host in self.bed.hosts:
            there = host.run(["sh", "-c", "hostname; ip -br addr show eth0; echo $$; touch /dev/shm/of-$(hostname); "
                                          "ls /dev/shm | grep of-"])
            self.assertEqual(there.code, 0, str(there))
            lines = there.out.split("\n")
            self.assertEqual(lines[0], host.name)
            self.assertIn(host.address, lines[1])
            self.assertIn(host.address6, lines[1])
            self.assertLess(int(lines[2]), 1000)
            self.assertEqual(lines[3:], [f"of-{host.name}", ""])

    def test_they_know_each_other_by_name_and_head_knows_them(self):
        for host in [*self.bed.hosts, self.bed.head]:
            for other in self.bed.hosts:
                self.assertTrue(host.answers(other), f"{host} to {other}")
            self.assertEqual(host.run(["getent", "ahostsv4", "h2"]).out.split()[0], "10.77.0.2")

    def test_a_name_that_is_nowhere_fails_at_once(self):
        there = self.bed[1].run(["getent", "ahosts", "nowhere.example"], 9)
        self.assertEqual((there.code, there.out), (2, ""))

    def test_clocks_are_hours_apart(self):
        read = ["python3", "-c", "import time; print(time.clock_gettime(time.CLOCK_MONOTONIC), time.time())"]
        one, two = ([float(word) for word in self.bed[i].run(read).out.split()] for i in (1, 2))
        self.assertAlmostEqual(two[0] - one[0], 3600, delta=20)
        self.assertAlmostEqual(two[1] - one[1], 0, delta=20)

    def test_a_day_of_another_time(self):
        library = beds.fake_clock_library()
        if not library:
            self.skipTest("libfaketime is not installed")
        there = self.bed[1].run(["date", "+%s"], env={"LD_PRELOAD": library, "FAKETIME": "-1h"})
        self.assertAlmostEqual(float(there.out), time.time() - 3600, delta=20)

    def test_a_cut_host_answers_nobody_and_a_healed_one_everybody(self):
        self.bed[2].cut()
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))
        self.assertFalse(self.bed[2].answers(self.bed[1], 0.5))
        self.assertTrue(self.bed[1].answers(self.bed[3]), "the others are not concerned")
        self.bed[2].heal()
        wait_until(lambda: self.bed[1].answers(self.bed[2]), 30, "an answer")
        wait_until(lambda: self.bed[2].answers(self.bed[1]), 30, "an answer")

    def test_nobody_is_told_of_a_cut(self):
        server = self.bed[1].start(["python3", "-c", LISTEN, "900"])
        wait_until(lambda: "listening" in server.out, 20, "the server")
        client = self.bed[2].start(["python3", "-c", SEND.replace("for line in sys.stdin:\n    pass", "peer.recv(1)"),
                                    self.bed[1].address, "900"])
        wait_until(lambda: "connected" in client.out, 20, "the client")
        self.bed[2].crash()
        with self.assertRaises(AssertionError):
            server.wait(1)  # no end of the connection has come
        self.bed[2].boot()
        server.signal(signal.SIGTERM)
        server.wait(10)

    def test_deaf_and_mute(self):
        self.bed[2].mute()
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))
        self.bed[2].open()
        self.assertTrue(self.bed[1].answers(self.bed[2]))
        self.bed[2].deaf()
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))

    def test_all_is_lost_and_then_nothing(self):
        self.bed[2].loss(100)
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))
        self.bed[2].loss(0)
        self.assertTrue(self.bed[1].answers(self.bed[2]))

    def test_a_firewall(self):
        self.bed[2].block(9)
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))
        self.bed[2].open()
        self.bed[2].block_all_but(9)
        self.assertTrue(self.bed[1].answers(self.bed[2]))
        self.bed[2].open()
        self.bed[2].block_all_but(10)
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))

    def test_a_slow_link(self):
        self.bed[2].rate("1mbit")
        server = self.bed[1].start(["python3", "-c", LISTEN, "901"])
        wait_until(lambda: "listening" in server.out, 20, "the server")
        send = "import socket; s = socket.create_connection(('10.77.0.1', 901)); s.sendall(bytes(400000))"
        client = self.bed[2].start(["python3", "-c", send + "; s.shutdown(1); s.recv(1)"])
        client.wait(30)
        server.wait(30)
        self.assertGreater(server.seconds, 1.5, "400 kB need 3 s at this rate")

    def test_a_late_wire(self):
        def answer_in():
            asked = self.bed[1].run(["bash", "-c", ": </dev/tcp/10.77.0.2/9"], 20)
            self.assertIn("Connection refused", asked.err)
            return asked.seconds
        self.bed[2].delay(700)
        self.bed[1].answers(self.bed[2])  # they know each other's card now
        self.assertGreater(answer_in(), 0.7)
        self.bed[2].cut()
        self.assertFalse(self.bed[1].answers(self.bed[2], 2))
        self.bed[2].heal()
        wait_until(lambda: self.bed[1].answers(self.bed[2]), 30, "an answer")
        server = self.bed[1].start(["python3", "-c", LISTEN, "902"])
        wait_until(lambda: "listening" in server.out, 20, "the server")
        send = "import socket; s = socket.create_connection(('10.77.0.1', 902)); s.sendall(bytes(4000000))"
        client = self.bed[2].run(["python3", "-c", send + "; s.shutdown(1); s.recv(1)"])
        self.assertEqual((client.code, server.wait(30)), (0, 0), f"{client}\n{server}")
        self.assertEqual(sum(map(int, server.out.split()[1:])), 4000000)
        self.bed[2].crash()
        self.bed[2].boot()
        self.assertLess(min(answer_in() for _ in range(5)), 0.7)

    def test_a_disk_that_hangs(self):
        if obstacle := beds.no_slow_disk():
            self.skipTest(obstacle)
        disk = self.bed[1].slow_disk()
        self.addCleanup(disk.close)
        script = ("set -e; cd $0; mkdir -p a/b; echo one >a/b/file; echo two >>a/b/file; mv a/b/file a/file; mv a c; cat c/file; "
                  "ln -s c/file link; cat link; ls c; touch -d @7 c/file; stat -c %Y c/file; printf x | dd of=c/file conv=notrunc "
                  "status=none; rm link; rmdir c/b; df . >/dev/null; cat c/file; ! cat nothing 2>/dev/null")
        there = self.bed[1].run(["sh", "-c", script, disk.folder], cwd="/")
        self.assertEqual((there.code, there.out), (0, "one\ntwo\none\ntwo\nb\nfile\n7\nxne\ntwo\n"), str(there))
        self.assertEqual((disk.behind / "c/file").read_text(encoding="ascii"), "xne\ntwo\n")
        self.assertEqual(os.listdir(disk.folder), [], "seen by that host only")
        disk.hang()
        writes = self.bed[1].start(["sh", "-c", "echo three >>$0/c/file", disk.folder], cwd="/")
        wait_until(disk.is_waited_for, 20, "a request")
        with self.assertRaises(AssertionError):
            writes.wait(1)
        disk.go_on()
        self.assertEqual(writes.wait(20), 0, str(writes))
        self.assertEqual((disk.behind / "c/file").read_text(encoding="ascii"), "xne\ntwo\nthree\n")

    def test_a_crash_leaves_nothing_and_a_boot_brings_it_back(self):
        self.bed[3].start(["sh", "-c", "sleep 1000 & setsid sleep 1000 & wait"])
        wait_until(lambda: len(self.bed[3].processes()) == 3, 10, "three processes")
        self.bed[3].crash()
        self.assertEqual(self.bed[3].processes(everything=True), [])
        self.assertFalse(self.bed[3].is_up())
        self.bed[3].boot()
        self.assertTrue(self.bed[1].answers(self.bed[3]))
        self.assertEqual(self.bed[3].processes(), [])

    def test_two_that_crashed_are_two_again(self):
        for _ in range(3):
            self.bed[2].crash()
            self.bed[3].crash()
            self.assertEqual([host.is_up() for host in self.bed.hosts], [True, False, False])
            self.bed[2].boot()
            self.assertFalse(self.bed[3].is_up())
            self.bed[3].boot()
            self.assertTrue(self.bed[2].answers(self.bed[3]))

    def test_a_small_disk_is_full_soon(self):
        folder = self.bed[1].small_disk(64)
        there = self.bed[1].run(["dd", "if=/dev/zero", f"of={folder}/file", "bs=1k", "count=100"])
        self.assertIn("No space left", there.err)
        self.assertEqual(os.listdir(folder), [], "seen by that host only")

    def test_roles(self):
        job = self.bed[1].start([DDRUN, "--nproc-per-node=2", WORKER, "pause"])
        wait_until(lambda: len(self.bed[1].of_role("worker")) == 2, 20, "two workers")
        self.assertEqual([len(self.bed[1].of_role(role)) for role in ("guard", "sweeper", "agent")], [1, 1, 1])
        self.bed[1].signal("agent", signal.SIGKILL)
        job.wait(30)
        self.assertEqual(self.left(), {})

    def test_codes_and_output(self):
        self.assertEqual(self.bed[1].run(["sh", "-c", "echo a; echo b >&2; exit 7"]).code, 7)
        self.assertEqual(self.bed[1].run(["sh", "-c", "kill -9 $$"]).code, 137)
        gated = self.bed[1].start(["echo", "through"], gate=True)
        with self.assertRaises(AssertionError):
            gated.wait(0.3)
        gated.go()
        self.assertEqual((gated.wait(10), gated.out), (0, "through\n"))

    def test_what_is_left_is_seen(self):
        self.bed[2].start(["sleep", "1000"])
        wait_until(lambda: self.bed[2].processes(), 10, "the process")
        self.assertIn("sleep 1000", self.left(0.1)["h2"][0])
        self.bed.mend()

    def test_mended_hosts_answer_at_once(self):
        self.bed[2].cut()
        self.bed[1].run(["ip", "neigh", "flush", "all"])
        # By then h1 has asked three times for h2's card, and is about to give up.
        self.assertFalse(self.bed[1].answers(self.bed[2], 2.5))
        self.bed.mend()
        self.assertTrue(self.bed[1].answers(self.bed[2], 0.5))


class Life(unittest.TestCase):
    def setUp(self):
        if obstacle := beds.obstacle():
            self.skipTest(obstacle)

    def test_two_beds_side_by_side(self):
        with beds.Bed(2) as one, beds.Bed(2) as two:
            server = two[2].start(["python3", "-c", LISTEN, "9"])
            wait_until(lambda: "listening" in server.out, 20, "the server")
            self.assertTrue(one[1].answers(one[2]))
            self.assertTrue(two[1].answers(two[2]))
            two[2].cut()
            self.assertTrue(one[1].answers(one[2]))
            folders = [one.dir, two.dir]
        self.assertEqual([folder.exists() for folder in folders], [False, False])

    def test_the_bed_dies_with_its_owner(self):
        script = ("import sys, time; sys.path.insert(0, sys.argv[1]); import bed; b = bed.Bed(2)\n"
                  "b[1].start(['sleep', '1000'])\n"
                  "print(b.dir, b[1].init(), b.head.init(), flush=True); time.sleep(1000)")
        owner = subprocess.Popen([sys.executable, "-c", script, str(pathlib.Path(beds.__file__).parent)],
                                 stdout=subprocess.PIPE, text=True)
        folder, *pids = owner.stdout.readline().split()
        self.assertTrue(all(os.path.exists(f"/proc/{pid}") for pid in pids), str(pids))
        owner.kill()
        owner.wait()
        owner.stdout.close()
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 20, "the end of the hosts")

        def removed():  # by this call, or by another bed that begins now
            beds.remove_old()
            return not os.path.exists(folder)
        wait_until(removed, 20, "the end of the bed's folder")

    def test_a_living_bed_is_not_removed(self):
        with beds.Bed(1) as bed:
            beds.remove_old()
            self.assertTrue(bed.dir.exists())
            self.assertTrue(str(bed.dir).startswith(tempfile.gettempdir()))

    def test_a_name_server_that_never_answers(self):
        with beds.Bed(1, dns="silent") as bed:
            asked = bed[1].start(["getent", "ahosts", "nowhere.example"])
            with self.assertRaises(AssertionError):
                asked.wait(2)


if __name__ == "__main__":
    main()
