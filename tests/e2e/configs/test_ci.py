#!/usr/bin/env python3
"""The commands of configs/ci, in their order, as GitHub's and GitLab's runners run them, with our programs."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None

BUILD = ROOT / "build/dev/bin"
PROGRAMS = {"ddrun": os.environ.get("DDRUN_TEST_PROGRAM", BUILD / "ddrun"),
            "ddrun-allreduce": os.environ.get("DDRUN_TEST_ALLREDUCE", BUILD / "ddrun-allreduce")}
COLLECTIVES = 10
# The examples demand a bandwidth that any machine has, but not a program in which every access to memory is watched.
too_slow_for_its_bounds = unittest.skipIf(os.environ.get("DDRUN_SANITIZE"), "a sanitizer is slower than what the jobs demand")


class Examples(unittest.TestCase):
    longMessage = True

    def setUp(self):
        if yaml is None:
            self.skipTest("python3-yaml not installed: run scripts/setup --tests")
        if not shutil.which("curl"):
            self.skipTest("curl not installed")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-ci-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.archive = self.folder / "ddrun.tar.gz"
        with tarfile.open(self.archive, "w:gz", compresslevel=1) as archive:
            for name, program in PROGRAMS.items():
                archive.add(program, f"ddrun-0.1.0-Linux/bin/{name}")  # as scripts/package has them
        self.home = self.folder / "home"
        self.work = self.folder / "work"
        for folder in (self.home, self.work):
            folder.mkdir()

    def read(self, name):
        return yaml.safe_load((ROOT / "configs/ci" / name).read_text())

    def run_commands(self, text, **variables):
        """As both runners do: a shell that ends at the first command that fails."""
        # Programs that are installed on this machine are not what is tested.
        path = variables.pop("path", "") + "/usr/local/bin:/usr/bin:/bin"
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text], cwd=self.work, text=True,
                              capture_output=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
                              env={"HOME": str(self.home), "PATH": path, "CI": "true",
                                   "DDRUN_ARCHIVE": self.archive.as_uri(), **variables})
        return done

    def check_reports(self, artifacts):
        for name in artifacts:
            self.assertGreater((self.work / name).stat().st_size, 0, name)
        report = json.loads((self.work / "allreduce.json").read_text())
        self.assertTrue(report["ok"])
        self.assertEqual(report["world_size"], 4)
        self.assertEqual(len({result["collective"] for result in report["results"]}), COLLECTIVES)
        self.assertEqual(json.loads((self.work / "smoke.json").read_text())["verdict"], "success")

    def github(self, change=lambda text: text):
        """Runs the steps until one fails; its result, or the last one's."""
        workflow = self.read("github-actions.yml")
        job = workflow["jobs"]["smoke"]
        added = self.folder / "path"
        added.touch()
        for step in job["steps"]:
            if "run" not in step:
                continue
            path = "".join(line + ":" for line in added.read_text().splitlines())
            done = self.run_commands(change(step["run"]), path=path, GITHUB_PATH=str(added))
            if done.returncode:
                break
        return done, job

    @too_slow_for_its_bounds
    def test_github(self):
        done, job = self.github()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        uploads = [step for step in job["steps"] if "uses" in step]
        self.assertEqual([step["if"] for step in uploads], ["always()"])
        self.check_reports(uploads[0]["with"]["path"].split())

    @too_slow_for_its_bounds
    def test_gitlab(self):
        job = self.read("gitlab-ci.yml")["smoke"]
        self.assertIn("DDRUN_ARCHIVE", job["variables"])
        done = self.run_commands("\n".join(job["before_script"] + job["script"]))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_reports(job["artifacts"]["paths"])

    def test_what_is_too_slow_fails_the_job(self):
        done, _ = self.github(lambda text: text.replace("--min-busbw=0.05", "--min-busbw=1000000"))
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("too slow: all_reduce of 8 MiB float sum", done.stderr)

    def test_a_wrong_element_fails_the_job(self):
        done, _ = self.github(lambda text: text.replace("--collective=all", "--collective=all --corrupt-rank=2"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
