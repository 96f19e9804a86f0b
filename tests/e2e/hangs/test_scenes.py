#!/usr/bin/env python3
"""Each job of scenes.py on one machine, where `ddrun stacks` begins with its line. DDRUN_TEST_SCENES: names of those that
are run, separated by commas; without it all. Those of PyTorch and MPI need their environment (scripts/setup --pytorch)."""
import os
import pathlib
import re
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import scenes  # noqa: E402
from test_hangs import TORCH, Job, may_sample  # noqa: E402
from cases import main, wait_until  # noqa: E402


def missing(scene):
    """Why it cannot be run here; empty: it can."""
    if scene.library in ("torch", "mpi", "mpi4py") and not TORCH.exists():
        return "there is no PyTorch and MPI (scripts/setup --pytorch)"
    if scene.library in ("mpi", "mpi4py") and not may_sample():
        return "the kernel does not let this user sample a thread that computes, as MPICH's do"
    return ""


class Scenes(Job):
    def setUp(self):
        super().setUp()
        self.cwd = self.folder

    def command(self, scene):
        (self.folder / "ranks.py").write_text(scenes.RANKS)
        (self.folder / ("job.c" if scene.library == "mpi" else "job.py")).write_text(scene.program)
        if scene.library == "mpi":
            library = TORCH.parents[1] / "lib"
            subprocess.run([TORCH.with_name("mpicc"), "job.c", "-O1", "-o", "job", f"-Wl,-rpath,{library}"], cwd=self.folder,
                           check=True)
            return ["./job"]
        if scene.library == "c++":
            return [os.environ["DDRUN_TEST_HANG"], scene.program]
        return ["job.py"] if scene.library == "sockets" else ["--no-python", TORCH, "job.py"]

    def run_scene(self, scene):
        with socket.create_server(("127.0.0.1", 0)) as mute:
            server = "127.0.0.1:%d" % mute.getsockname()[1]
            running = self.start(*scene.options, *self.command(scene), *scene.others, ranks=scene.ranks, SCENE_SERVER=server)
            pattern = scene.pattern(self.folder.resolve(), server)
            pages = [""]

            def is_shown():
                asked = self.ask(running)
                pages[0] = asked.stdout + asked.stderr
                return pattern.match(pages[0])
            wait_until(is_shown, 30, what=lambda: f"{scene.line!r}, {scene.also!r}:\n{pages[0]}\n{running.output()}")
            self.end(running)


def add(scene):
    def test(self):
        if missing(scene):
            self.skipTest(missing(scene))
        self.run_scene(scene)
    setattr(Scenes, "test_" + re.sub(r"\W+", "_", scene.name), test)


for each in scenes.SCENES:
    if each.name in os.environ.get("DDRUN_TEST_SCENES", each.name).split(","):
        add(each)


if __name__ == "__main__":
    main()
