"""Streams of random numbers from DDRUN_SEED: reproducible, and different for each rank; in Python with the page's example."""
import shutil

from harness import TorchTest, main, run, run_ddrun, script
from documents import write_files

FAIL_ONCE = """
if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exit 5; fi
exec "$@"
"""


class Seeds(TorchTest):
    needs = ("torch", "numpy")

    def streams(self, workers, seed, *program, options=()):
        """By rank; what its generators gave first."""
        result = self.assert_success(run_ddrun([f"--nproc-per-node={workers}", f"--seed={seed}", *options, *program]))
        return dict(sorted(line.split(" ", 1) for line in result.out.splitlines()))

    def check(self, *program):
        two, three = self.streams(2, 42, *program), self.streams(3, 42, *program)
        self.assertEqual(list(three), ["[0]", "[1]", "[2]"])
        self.assertEqual(two, {rank: three[rank] for rank in two})
        for values in zip(*(stream.split() for stream in three.values())):
            self.assertEqual(len(set(values)), 3, values)  # each generator has its own stream in every rank
        return three

    def test_python_numpy_and_torch(self):
        write_files("python-workers.md", self.tmp)
        for stream in self.check(self.tmp / "seeds.py").values():
            self.assertEqual(len(set(stream.split())), 3)

    def test_cpp(self):
        compiler = shutil.which("c++")
        if not compiler:
            self.skipTest("there is no c++ in PATH")
        program = self.tmp / "seeds"
        self.assert_success(run([compiler, "-o", program, script("seeds.cpp")]))
        first = self.check(program)
        self.assertEqual(first["[0]"], "2576493707698874361")
        self.assertEqual(first["[1]"], "11572511668999661906")
        self.assertFalse(set(first.values()) & set(self.streams(3, 43, program).values()))
        # The same after a restart.
        again = self.streams(3, 42, "sh", "-c", FAIL_ONCE, "sh", program, options=["--max-restarts=1"])
        self.assertEqual(again, first)


if __name__ == "__main__":
    main()
