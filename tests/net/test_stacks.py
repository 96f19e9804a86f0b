"""docs/debugging.md on several hosts: a page of all ranks, also over a slow link, and hosts that do not answer."""

import os
import re
import sys

from jobs import JobTest, SECRET, TERMINATE
from netcase import DDRUN, HERE, main

sys.path.insert(0, str(HERE.parent / "e2e/hangs"))
import scenes  # noqa: E402
import test_scenes  # noqa: E402

# Rank 5 hangs; each rank has THREADS with stacks of their own.
PROGRAM = """import os, socket, threading, time
def load_batch(): time.sleep(1000)
def barrier():
    socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).recv(1)
for number in range(int(os.environ.get("THREADS", 0))):
    name = f"of_rank_{os.environ['RANK']}_{number}_" + "x" * 200
    exec(f"def {name}(left): {name}(left - 1) if left else time.sleep(1000)", globals())
    threading.Thread(target=globals()[name], args=(60,), daemon=True).start()
load_batch() if os.environ["RANK"] == "5" else barrier()
"""
# On the third host, not of the job.
MUTE_SERVER = """import socket, time
with socket.create_server(("", 4711)):
    print("is there", flush=True)
    time.sleep(1000)
"""
SERVER = "10.77.0.3:4711"
LINE = r"ranks 0-4 wait for rank 5 on h3: load_batch \(job.py:2\), sleeps\n"


class StacksTest(JobTest):
    hosts = 3

    def setUp(self):
        super().setUp()
        self.run_id = f"stacks-{os.getpid()}-{self.number}"  # also among jobs of other beds
        self.folder = self.bed.dir / self.run_id
        self.folder.mkdir()
        (self.folder / "job.py").write_text(PROGRAM)

    def hangs(self, *options, program=("job.py",), **env):
        return {host.name: self.start(host, *options, *program, **env) for host in self.bed.hosts}

    def start(self, host, *words, **env):
        return host.start([DDRUN, *self.options(), f"--rdzv-id={self.run_id}", *words], cwd=self.folder,
                          env={"DDRUN_SECRET": SECRET, **self.runtime_dir(host), **env})

    def runtime_dir(self, host):
        """Hosts share /tmp: here is the socket of the host's own agent."""
        folder = self.folder / host.name
        folder.mkdir(mode=0o700, exist_ok=True)
        return {"XDG_RUNTIME_DIR": folder}

    def ask(self, host, *options):
        return host.run([DDRUN, "stacks", self.run_id, *options], env=self.runtime_dir(host))

    def shows(self, host, pattern, seconds=60):
        pages = [""]

        def is_shown():
            asked = self.ask(host)
            pages[0] = asked.out + asked.err
            return re.match(pattern, pages[0])
        self.until(is_shown, lambda: f"{pattern}: {pages[0][:3000]}", seconds)
        return pages[0]


class Stacks(StacksTest):
    def test_any_host_shows_all(self):
        jobs = self.hangs()
        for host in self.bed.hosts:
            self.shows(host, LINE)
        jobs["h1"].signal(TERMINATE)

    def test_the_limit_of_one_host(self):
        jobs = {host.name: self.start(host, f"--timeout={'4s' if host.name == 'h2' else '60s'}", "job.py")
                for host in self.bed.hosts}
        for job in jobs.values():
            self.assertEqual(job.wait(60), 124, self.said())
            self.assertRegex(job.err, r"rank 5 held up the others: load_batch \(job.py:2\), sleeps \(local rank 1, pid \d+ on h3\)")
            self.assertEqual(len(re.findall(LINE, job.err)), 1 if job is jobs["h1"] else 0, self.said())

    def test_a_host_that_does_not_answer(self):
        jobs = self.hangs("--heartbeat-misses=30")
        self.shows(self.bed[1], LINE)
        self.bed[3].cut()
        for _ in range(2):  # both questions reach it at once, later
            page = self.ask(self.bed[1])
            self.assertIn("(h3: no answer within 3.0 s)", page.out, self.said())
            self.assertIn("ranks 0-3", page.out)
        self.bed[3].heal()
        self.shows(self.bed[1], LINE)
        jobs["h1"].signal(TERMINATE)

    def test_a_slow_link(self):
        """4 MiB of stacks over 1 MB/s: no host is lost, and heartbeats go on."""
        self.bed[3].rate("8mbit")
        jobs = self.hangs(THREADS="35")
        self.shows(self.bed[1], LINE)
        for host in (self.bed[1], self.bed[3], self.bed[1]):
            page = self.ask(host, "--json")
            self.assertGreater(len(page.out), 1_500_000)  # its own ranks at least
            self.assertIn('"function": "load_batch"' if '"host": "h3"' in page.out else "h3: ", page.out)
        self.shows(self.bed[3], LINE)
        for job in jobs.values():
            self.assertNotIn("lost", job.err)
            self.assertIsNone(job.code)
        jobs["h1"].signal(TERMINATE)


class Scenes(StacksTest):
    """The jobs of tests/e2e/hangs/scenes.py for three machines."""
    def run_scene(self, scene):
        if reason := test_scenes.missing(scene):
            self.skipTest(reason)
        (self.folder / "ranks.py").write_text(scenes.RANKS)
        (self.folder / "job.py").write_text(scene.program)
        program = ["job.py"] if scene.library == "sockets" else ["--no-python", str(test_scenes.TORCH), "job.py"]
        server = self.bed[3].start([sys.executable, "-c", MUTE_SERVER])
        self.until(lambda: "is there" in server.out, "the server")
        jobs = self.hangs(*scene.options, program=program, SCENE_SERVER=SERVER)
        self.shows(self.bed[2], scene.pattern(self.folder, SERVER, host=r"h\d"), seconds=90)
        jobs["h1"].signal(TERMINATE)
        server.signal(TERMINATE)


def add(scene):
    setattr(Scenes, "test_" + re.sub(r"\W+", "_", scene.name), lambda self: self.run_scene(scene))


for each in scenes.SCENES:
    if each.machines > 1:
        add(each)


if __name__ == "__main__":
    main()
