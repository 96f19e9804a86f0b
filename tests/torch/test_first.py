"""The smallest job there is, under both launchers."""
from harness import TorchTest, main, run_ddrun, run_torchrun, script


class First(TorchTest):
    def test_all_reduce(self):
        args = ["--nproc-per-node=2", script("allreduce.py")]
        ours, theirs = self.assert_success(run_ddrun(["--label=none", *args])), self.assert_success(run_torchrun(args))
        self.assertEqual(sorted(ours.out.splitlines()), sorted(theirs.out.splitlines()))
        self.assertIn("rank 1 of 2: 1", ours.out)


if __name__ == "__main__":
    main()
