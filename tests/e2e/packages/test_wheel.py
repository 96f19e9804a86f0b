#!/usr/bin/env python3
"""test_wheel.py PACKAGES: the wheel that is there, installed in each way that pip, uv and pipx know, without a network.

pip, uv and pipx are those of build/package-tools (scripts/package). DDRUN_PYTHONS names Pythons to try besides this one, separated by colons."""
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

WHEELS = sorted(pathlib.Path(sys.argv.pop(1)).resolve().glob(f"*_{platform.machine()}.whl")) if len(sys.argv) > 1 else []
WHEEL = WHEELS[0] if WHEELS else None
VERSION = WHEEL.name.split("-")[1] if WHEEL else ""
TOOLS = pathlib.Path(__file__).resolve().parents[3] / "build/package-tools/bin"
PIP = [TOOLS / "python", "-m", "pip", "--python", sys.executable]
PYTHONS = [sys.executable, *filter(None, os.environ.get("DDRUN_PYTHONS", "").split(":"))]
OF_VENV = "the virtual environment that ddrun was started from"
OFFLINE = ["--no-index", "--no-deps", "--disable-pip-version-check", "-q"]


NO_CLOUDPICKLE = """
import ddrun
try:
    ddrun.run(lambda: None)
except ImportError as error:
    print(error)
"""


class Wheel(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-wheel-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.dir / "home"), "LC_ALL": "C.UTF-8"}

    def run_ok(self, *command, **variables):
        """stdout of a command that succeeds and writes nothing to stderr that it does not mean."""
        done = subprocess.run([str(word) for word in command], env={**self.environment, **variables}, cwd=self.dir,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout

    def venv(self, *options, python=sys.executable):
        folder = self.dir / "venv"
        self.run_ok(python, "-m", "venv", *options, folder)
        return folder

    def finds(self, python, expected, why, **variables):
        """This Python's package knows its program, and `python -m ddrun` runs it with this Python's workers. Called by its
        path, the program says `why` it chooses a Python."""
        found = self.run_ok(python, "-c", "import ddrun; print(ddrun.find_ddrun(), ddrun.__version__)", **variables)
        self.assertEqual(found.split(), [str(expected), VERSION])
        self.assertEqual(self.run_ok(python, "-m", "ddrun", "--version", **variables).split()[:2], ["ddrun", VERSION])
        (self.dir / "which.py").write_text("import sys; print(sys.executable)\n")
        ran = self.run_ok(python, "-m", "ddrun", "--label=none", "which.py", **variables).strip()
        own = self.run_ok(python, "-c", "import sys; print(sys.executable)", **variables).strip()
        self.assertEqual(ran, own)
        self.assertIn(f"by {own}: PYTHON_EXEC\n", self.run_ok(python, "-m", "ddrun", "--dry-run", "which.py", **variables))
        self.assertIn(f": {why}\n", self.run_ok(expected, "--dry-run", "which.py", **variables))

    def test_contents(self):
        """Native programs in bin/, manual pages, completions, licences; no scripts, no dependency but extras."""
        arch = platform.machine()
        tags = "manylinux2014_{0}.manylinux_2_17_{0}.musllinux_1_1_{0}".format(arch)
        self.assertEqual(WHEEL.name, f"ddrun-{VERSION}-py3-none-{tags}.whl")
        self.assertLess(WHEEL.stat().st_size, 5.0e6)
        with zipfile.ZipFile(WHEEL) as archive:
            names = archive.namelist()
            metadata = archive.read(f"ddrun-{VERSION}.dist-info/METADATA").decode()
            entry_points = archive.read(f"ddrun-{VERSION}.dist-info/entry_points.txt").decode()
            for program in ("ddrun", "ddrun-allreduce"):
                self.assertEqual(archive.read(f"ddrun-{VERSION}.data/scripts/{program}")[:4], b"\x7fELF")
        for end in ("man1/ddrun.1", "man1/ddrun-allreduce.1", "completions/ddrun", "_ddrun", "ddrun.fish", "py.typed",
                    "licenses/LICENSE", "licenses/NOTICE"):
            self.assertTrue([name for name in names if name.endswith(end)], end)
        self.assertNotIn("_scripts]", entry_points)
        self.assertIn("[pytest11]\nddrun = ddrun_pytest\n", entry_points)
        self.assertIn("ddrun_pytest/__init__.py", names)
        self.assertIn("\nLicense-Expression: BSD-3-Clause\n", metadata)
        required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
        self.assertEqual([line for line in required if "; extra ==" not in line], [])

    def test_venv(self):
        """The program's own environment, activated or not, with every Python."""
        for python in PYTHONS:
            with self.subTest(python=python):
                folder = self.venv("--clear", python=python)
                self.run_ok(folder / "bin/pip", "install", *OFFLINE, WHEEL)
                self.finds(folder / "bin/python", folder / "bin/ddrun", OF_VENV)
                table = self.run_ok(folder / "bin/ddrun", "-n", "2", folder / "bin/ddrun-allreduce", "-b", "8", "-e", "1K")
                self.assertIn("# Out of bounds values : 0 OK", table)
                self.assertIn("pip install cloudpickle", self.run_ok(folder / "bin/python", "-c", NO_CLOUDPICKLE))
                self.run_ok(folder / "bin/pip", "uninstall", "-y", "-q", "ddrun")
                self.assertEqual(sorted(folder.glob("**/*ddrun*")), [])

    def test_system_site_packages(self):
        """An environment in which the package is that of the Python below it."""
        base = self.venv()
        self.run_ok(base / "bin/pip", "install", *OFFLINE, WHEEL)
        python = self.dir / "upper/bin/python"
        self.run_ok(sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", self.dir / "upper")
        site = self.run_ok(base / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        self.finds(python, base / "bin/ddrun", OF_VENV, PYTHONPATH=site)

    def test_user(self):
        self.run_ok(*PIP, "install", *OFFLINE, "--user", "--break-system-packages", WHEEL,
                    PYTHONUSERBASE=str(self.dir / "user"))
        self.finds(sys.executable, self.dir / "user/bin/ddrun", "python3 in PATH", PYTHONUSERBASE=str(self.dir / "user"))

    def test_target(self):
        self.run_ok(*PIP, "install", *OFFLINE, "--target", self.dir / "target", WHEEL)
        self.finds(sys.executable, self.dir / "target/bin/ddrun", "python3 in PATH", PYTHONPATH=str(self.dir / "target"))

    def test_musl(self):
        """pip takes the wheel where the C library is musl, as in Alpine."""
        self.run_ok(*PIP, "install", *OFFLINE, "--find-links", WHEEL.parent, "--only-binary=:all:", "--platform",
                    f"musllinux_1_1_{platform.machine()}", "--target", self.dir / "musl", f"ddrun=={VERSION}")

    def test_prefix(self):
        self.run_ok(*PIP, "install", *OFFLINE, "--prefix", self.dir / "prefix", WHEEL)
        [program] = (self.dir / "prefix").glob("**/bin/ddrun")
        [package] = (self.dir / "prefix").glob("**/ddrun/__init__.py")
        self.finds(sys.executable, program, "python3 in PATH", PYTHONPATH=str(package.parent.parent))

    def test_not_found(self):
        """The error lists every place."""
        self.run_ok(*PIP, "install", *OFFLINE, "--target", self.dir / "target", WHEEL)
        (self.dir / "target/bin/ddrun").unlink()
        done = subprocess.run([sys.executable, "-m", "ddrun"], env={**self.environment, "PYTHONPATH": str(self.dir / "target")},
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        for place in (r"pip install --force-reinstall ddrun", str(self.dir / "target/bin"), "/home/.local/bin"):
            self.assertIn(place, done.stderr)

    def test_tools(self):
        """pipx and uv keep the program in an environment of their own, which must not become the workers' Python."""
        (self.dir / "which.py").write_text("import sys; print(sys.executable)\n")
        job = self.dir / "job"
        self.run_ok(sys.executable, "-m", "venv", "--without-pip", job)
        for tool, command in (("uv", ["tool", "install", "--offline", "--no-index", "--python", sys.executable]),
                              ("pipx", ["install", "--python", sys.executable, "--pip-args=--no-index"])):
            with self.subTest(tool=tool):
                bin_dir = self.dir / tool
                variables = {"UV_TOOL_DIR": str(self.dir / "tools"), "UV_TOOL_BIN_DIR": str(bin_dir),
                             "UV_CACHE_DIR": str(self.dir / "cache"), "PIPX_HOME": str(self.dir / "pipx-home"), "PIPX_BIN_DIR": str(bin_dir),
                             "PATH": f"{job}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(job)}
                self.run_ok(TOOLS / tool, *command, WHEEL, **variables)
                self.assertTrue((bin_dir / "ddrun").is_symlink())
                ran = self.run_ok(bin_dir / "ddrun", "--label=none", "which.py", **variables).strip()
                self.assertEqual(ran, f"{job}/bin/python")
                self.assertIn(f"by {ran}: the active virtual environment\n",
                              self.run_ok(bin_dir / "ddrun", "--dry-run", "which.py", **variables))


if __name__ == "__main__":
    if WHEEL is None:
        sys.exit("SKIPPED: there is no wheel: scripts/package makes it")
    unittest.main()
