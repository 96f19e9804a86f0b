"""What every test against real PyTorch shares: running the same command line under ddrun and under torchrun.

Needs nothing but the standard library, so that importing it costs nothing; only workers import torch.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import running  # noqa: E402
from documents import ROOT  # noqa: E402
from cases import main, wait_until  # noqa: E402,F401  for the tests
from running import DDRUN, Result, Running, environment, processes_of, run  # noqa: E402,F401  for the tests

SCRIPTS = HERE / "scripts"
VENV_IS_GIVEN = "DDRUN_TORCH_VENV" in os.environ
VENV = pathlib.Path(os.environ.get(
    "DDRUN_TORCH_VENV",
    pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "ddrun/torch-2.15"))
PYTHON = str(VENV / "bin/python")
TORCHRUN = str(VENV / "bin/torchrun")
running.FIRST_IN_PATH[:] = [str(VENV / "bin")]


def script(name):
    """The path of a worker script in tests/torch/scripts."""
    return str(SCRIPTS / name)


def mpi_program(folder, compiler=VENV / "bin/mpicc"):
    """scripts/mpi_hello.c, compiled into this folder: linked with the compiler's MPI."""
    library = compiler.parent.parent / "lib"
    subprocess.run([compiler, script("mpi_hello.c"), "-o", folder / "hello", f"-Wl,-rpath,{library}"], check=True)
    return str(folder / "hello")


# What several programs print that run mpi_parts.py as `parts`.
MPI_PARTS = [f"{rank} of 5, program {int(rank > 1)} {'ocean' if rank < 2 else 'air'}" for rank in range(5)]


def mpi_parts(*options):
    """ddrun's line for two programs of 2 and 3 ranks."""
    part = [*options, script("mpi_parts.py")]
    return ["--label=none", "-n2", "--role=ocean", *part, ":", "-n3", "--role=air", *part]


def run_ddrun(args, **options):
    # torchrun lies beside the venv's Python and uses it; ddrun takes the first python3 in PATH, which is the same.
    return run([DDRUN, *args], **options)


def run_torchrun(args, **options):
    return run([TORCHRUN, *args], **options)


def install(folder):
    """The Python package, as `pip install --target` would leave it in this new folder, with its entry points."""
    metadata = folder / "ddrun-0.dist-info"
    for made in (metadata, folder / "bin"):
        made.mkdir(parents=True)
    for name in ("ddrun", "ddrun_pytest"):
        (folder / name).symlink_to(ROOT / "python" / name)
    (folder / "bin/ddrun").symlink_to(DDRUN)
    (metadata / "METADATA").write_text("Name: ddrun\nVersion: 0\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (metadata / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups.items()))
    return folder


class TorchTest(unittest.TestCase):
    """A test with a folder of its own, `self.tmp`; skipped, with the reason, where the packages are not installed."""
    needs = ("torch",)  # Python packages
    longMessage = True
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        obstacle = os.environ.get("DDRUN_TORCH_OBSTACLE", "run scripts/setup --pytorch")
        # scripts/setup writes that file last: without it the installation was cut off.
        if not os.access(PYTHON, os.X_OK) or not (VENV_IS_GIVEN or (VENV / ".ddrun-complete").exists()):
            raise unittest.SkipTest(f"no PyTorch in {VENV}: {obstacle}")
        for package in cls.needs:
            if not list(VENV.glob(f"lib/python3*/site-packages/{package}")):
                raise unittest.SkipTest(f"the package {package} is not in {VENV}: {obstacle}")
        if not os.access(DDRUN, os.X_OK):
            raise AssertionError(f"{DDRUN} is not there: build ddrun first")

    def setUp(self):
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-torch-"))
        self.addCleanup(shutil.rmtree, self.tmp, ignore_errors=True)

    def expect_nothing_left(self, names):
        """`names`: a function; at the end of the test it returns no name that it does not return now."""
        before = names()
        self.addCleanup(lambda: self.assertEqual(names() - before, set(), "names that were left"))

    def assert_success(self, result):
        self.assertEqual(result.code, 0, str(result))
        return result

    def start_ddrun(self, args, **options):
        running = Running([DDRUN, *args], **options)
        self.addCleanup(running.kill)
        return running
