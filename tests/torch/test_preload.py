"""Workers that are forks of --preload's server compute what others do."""
import json

from harness import TorchTest, main, run_ddrun, script
from documents import write_files
from ranks import facts_of_ranks

TWO = ["--nproc-per-node=2"]

UNSEEDED = """
import random, numpy, torch
print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed())
"""

THREADS = """
import os, torch
values = torch.ones(400, 400)
print((values @ values).sum().item(), torch.get_num_threads(), sorted(os.sched_getaffinity(0)))
"""

SPAWN = """
import os, torch
def fill(index, values):
    values[index] = int(os.environ["RANK"]) + 10 * index
if __name__ == "__main__":
    values = torch.zeros(2).share_memory_()
    torch.multiprocessing.spawn(fill, (values,), nprocs=2)
    print(values.tolist())
"""

# A rank's process group is left as it is.
GROUP_LEFT = """
import os, sys, torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
file = open(os.path.join(os.path.dirname(sys.argv[0]), os.environ["RANK"]), "w")
file.write("kept")
print("done")
"""

RANK_ZERO = """
import torchmetrics.utilities.prints
from lightning.fabric.utilities.rank_zero import rank_zero_only
print(rank_zero_only.rank, torchmetrics.utilities.prints.rank_zero_only.rank)
"""


def run_preloaded(args, **options):
    return run_ddrun(["--preload=torch,numpy.random", *args], **options)


class PreloadTest(TorchTest):
    def lines(self, runner, text, *options):
        """What the ranks of a program print, in their order. It warns of nothing."""
        (self.tmp / "program.py").write_text(text)
        result = self.assert_success(runner(["--label=rank", *options, self.tmp / "program.py"]))
        self.assertEqual(result.err, "", str(result))
        return sorted(result.out.splitlines())


class Torch(PreloadTest):
    needs = ("torch", "numpy")

    def train(self, runner):
        folder = self.tmp / runner.__name__
        folder.mkdir()
        self.assert_success(runner([*TWO, "--max-restarts=1", script("train_ddp.py"), f"--folder={folder}",
                                    "--epochs=4", "--die-in-epoch=2"]))
        return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]

    def test_training_is_equal_to_the_last_bit(self):
        """After a restart too."""
        self.assertEqual(self.train(run_preloaded), self.train(run_ddrun))

    def test_generators_differ_by_rank(self):
        first, second = (line.split()[1:] for line in self.lines(run_preloaded, UNSEEDED, *TWO))
        self.assertFalse(set(first) & set(second))

    def test_seeds(self):
        write_files("python-workers.md", self.tmp)
        streams = [sorted(self.assert_success(runner([*TWO, "--seed=42", self.tmp / "seeds.py"])).out.splitlines())
                   for runner in (run_preloaded, run_ddrun)]
        self.assertEqual(*streams)

    def test_threads(self):
        for options in ((), (*TWO, "--bind=cores")):
            self.assertEqual(self.lines(run_preloaded, THREADS, *options), self.lines(run_ddrun, THREADS, *options))

    def test_loaders(self):
        for facts in facts_of_ranks(self, run_preloaded, script("loaders.py")):
            for method in ("fork", "spawn", "forkserver"):
                self.assertEqual(facts["samples"][method], list(range(24)))
                self.assertEqual(len(facts["workers"][method]), 1)

    def test_multiprocessing(self):
        self.assertEqual(self.lines(run_preloaded, SPAWN, *TWO), ["[0] [0.0, 10.0]", "[1] [1.0, 11.0]"])


    def test_ends(self):
        """With C's exit(), a process group in use and a file that is not closed."""
        def runner(args):
            return run_ddrun(["--preload=torch,torch._dynamo", *args])
        self.assertEqual(self.lines(runner, GROUP_LEFT, *TWO), ["[0] done", "[1] done"])
        self.assertEqual([(self.tmp / rank).read_text() for rank in "01"], ["kept", "kept"])

    def test_variables_of_libraries(self):
        """torch has started OpenMP: what a program sets before its own import of torch comes too late."""
        (self.tmp / "program.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n"
                                             "os.environ['KMP_BLOCKTIME'] = os.environ['MKL_NUM_THREADS'] = '1'\n")
        result = self.assert_success(run_ddrun(["--preload=torch", "--label=none", self.tmp / "program.py"]))
        self.assertRegex(result.err, r"^ddrun: warning: OMP_NUM_THREADS was read by \S+ when it was preloaded; set it with --env\n$")


class Lightning(PreloadTest):
    needs = ("torch", "lightning", "torchmetrics")

    def test_rank_zero(self):
        def runner(args, **options):
            return run_ddrun(["--preload=lightning", *args], **options)
        self.assertEqual(self.lines(runner, RANK_ZERO, *TWO), ["[0] 0 0", "[1] 1 1"])


if __name__ == "__main__":
    main()
