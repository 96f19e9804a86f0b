"""ddrun-allreduce under the real torchrun, which knows nothing of it."""
import os

from harness import DDRUN, TorchTest, main, run_torchrun

WORKER = os.path.join(os.path.dirname(DDRUN), "ddrun-allreduce")


class Worker(TorchTest):
    def test_all_ranks_meet(self):
        for backend in "shm", "tcp":
            result = self.assert_success(run_torchrun([
                "--standalone", "--no-python", "--nproc-per-node=3", WORKER, "--collective=all", f"--backend={backend}",
                "-b", "1K", "-e", "64K", "-f", "8", "-n", "2"]))
            self.assertIn(f"ranks: 3  backend: {backend}", result.out)
            self.assertIn("# Out of bounds values : 0 OK", result.out)

    def test_torchrun_hears_of_a_wrong_element(self):
        result = run_torchrun(["--standalone", "--no-python", "--nproc-per-node=2", WORKER, "-e", "1K", "-n", "2",
                               "--corrupt-rank=1"])
        self.assertEqual(result.code, 1, result)
        self.assertIn("FAILED", result.out)


if __name__ == "__main__":
    main()
