"""Benchmarks of collectives and of --preload, whole, with small sizes: ddrun beside whatever rivals are installed.

test_programs.py DDRUN FAKE_GPU LINK   a built ddrun, the driver and NCCL without GPUs, and how its worker is linked
"""

import io
import os
import subprocess
import sys
import tempfile
import unittest

import gpu_reducing
import launching
import measuring
import preloading
import reducing
import restarting
import run
from calling import Sizes

ROOT = os.path.join(measuring.HERE, "..", "..")
BUILD = 'set -eu; root=$1; . "$root/scripts/lib/bench.sh"; bench_helpers "$2" timed worker pmi_rank roofline; bench_mpi_workers "$2"'
SMALL = (Sizes(8, 64, 8, 3), Sizes(4096, 4096, 2, 2))
DDRUN, FAKE_GPU, LINK = sys.argv[1:4]
HELPERS = unittest.enterModuleContext(tempfile.TemporaryDirectory(prefix="ddrun-bench-helpers-"))


def setUpModule():
    subprocess.run(["bash", "-c", BUILD, "build", ROOT, HELPERS], check=True, timeout=120)


class Measured(unittest.TestCase):
    def setUp(self):
        self.bench = measuring.Bench(DDRUN, HELPERS, "", repeats=1, quick=True)
        self.addCleanup(self.bench.close)

    def measured(self, function, *args, **more):
        """The rows of a benchmark, which can be printed and written down."""
        rows = function(self.bench, lambda text: None, *args, **more)
        table = io.StringIO()
        measuring.print_table(rows, table)
        self.assertEqual(len(table.getvalue().splitlines()), 1 + len(rows))
        for row in map(measuring.as_json, rows):
            self.assertTrue(row["skipped"] or row["ours_spread"]["median"] > 0, row)
        return rows

    def against(self, rows, rival, program):
        """Either all rows with this rival have a ratio, or it is not installed."""
        ratios = [row.ratio for row in rows if row.rival == rival]
        self.assertTrue(ratios, rival)
        if os.path.exists(os.path.join(HELPERS, program)):
            self.assertTrue(all(ratio and ratio > 0 for ratio in ratios), ratios)


class Programs(Measured):
    def test_names_of_benchmarks_are_those_of_the_script(self):
        usage = subprocess.run([os.path.join(ROOT, "scripts", "bench"), "--help"], capture_output=True, text=True, check=True,
                               timeout=30).stdout
        for name in run.BENCHMARKS:
            self.assertIn(name, usage)

    def test_lines_of_workers_are_all_equal_or_all_different(self):
        """But for the 13 lines that the letters of one worker repeat."""
        for words, distinct in ((), 13), (("different",), 2000):
            with self.subTest(words):
                done = subprocess.run([DDRUN, "-n", "2", "--label=none", os.path.join(HELPERS, "bench_worker"), "lines", "100000", *words],
                                      capture_output=True, check=True, timeout=30)
                lines = done.stdout.splitlines()
                self.assertEqual((len(lines), {len(line) for line in lines}, len(set(lines))), (2000, {99}, distinct))

    def test_folded_lines(self):
        rows = self.measured(restarting.fold, size=100_000)
        self.assertEqual([row.quantity.split(",")[0] for row in rows], ["equal lines", "different lines"])
        self.assertTrue(all(row.ratio > 0 for row in rows), rows)

    def test_mpi_ranks(self):
        for mpi in ("mpich", "openmpi"):
            if not os.path.exists(os.path.join(HELPERS, f"bench_hello_{mpi}")):
                self.skipTest(f"lib{mpi}-dev is not installed")
        rows = self.measured(launching.mpi_start)
        self.assertEqual([(row.quantity, row.rival) for row in rows],
                         [("4 ranks", "hydra"), ("128 ranks", "hydra"), ("4 ranks", "mpirun")])

    def test_all_reduce(self):
        rows = self.measured(reducing.allreduce, spans=SMALL)
        self.assertLessEqual({"openmpi", "mpich", "gloo", "torch", "roofline, copy"}, {row.rival for row in rows})
        self.against(rows, "openmpi", "bench_mpi_openmpi")
        self.against(rows, "mpich", "bench_mpi_mpich")
        self.against(rows, "roofline, copy", "bench_roofline")

    def test_other_collectives(self):
        rows = self.measured(reducing.collectives, spans=SMALL[1:], names=("broadcast", "all_to_all"))
        self.against(rows, "openmpi", "bench_mpi_openmpi")
        self.assertIn("broadcast, 4 KiB, in place, shared", {row.quantity for row in rows if row.ours})

    def test_memory_after_restarts_with_preload(self):
        row, = self.measured(preloading.preload_leak, first=2, last=6)
        self.assertIn("6 restarts", row.quantity)
        # A sanitizer keeps what was freed.
        enough = ("goal met", "floor met") if os.environ.get("DDRUN_SANITIZE") else ("goal met",)
        self.assertEqual(row.rival, "after 2 restarts")
        self.assertIn(row.verdict(), enough)

    def test_gpu_or_why_there_is_none(self):
        rows = self.measured(gpu_reducing.gpu_allreduce, SMALL[1], SMALL[1:])
        if rows[0].skipped and len(rows) == 1:
            self.assertRegex(rows[0].skipped, "nccl cannot run here|cannot open libraries")


@unittest.skipIf(LINK == "static", "a static program opens no libraries")
class FakeGpu(Measured):
    def fake(self, wanted):
        directory = self.enterContext(tempfile.TemporaryDirectory(prefix="ddrun-fake-gpu-"))
        self.bench.environment.update(DDRUN_CUDA_LIBRARY=FAKE_GPU, DDRUN_NCCL_LIBRARY=FAKE_GPU,
                                      FAKE_GPU=f"devices=1 memory=25165824 {wanted} dir={directory}")

    def test_one_rank(self):
        self.fake("nccl=22809")
        rows = self.measured(gpu_reducing.gpu_allreduce, SMALL[1], SMALL[1:])
        by_name = {row.quantity: row for row in rows}
        out_of_place = by_name["one rank, 4 KiB, out of place"]
        self.assertEqual((out_of_place.rival, out_of_place.goal), ("", None))
        self.assertGreater(out_of_place.ours[0], 0)
        self.assertEqual(by_name["one rank, 4 KiB, in place"].skipped, "one rank in place: nccl does nothing")
        self.assertIn("NCCL 2.28 does not let ranks share a GPU", by_name["2 ranks on one GPU"].skipped)

    def test_several_ranks_share_a_gpu_with_a_later_nccl(self):
        self.fake("nccl=23007")
        rows = self.measured(gpu_reducing.gpu_allreduce, SMALL[1], SMALL[1:])
        for ranks in (2, 4, 8):
            for placement in ("in place", "out of place"):
                row, = [row for row in rows if row.quantity == f"{ranks} ranks on one GPU, 4 KiB, {placement}"]
                self.assertGreater(row.ratio, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
