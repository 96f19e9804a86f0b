"""A job that is restarted finds a store without the keys of the attempt before, so its ranks find each other.

Stock torchrun 2.15 keeps the keys, and fails or hangs in about 4 of 10 runs of this. DDRUN_TEST_RESTARTS says how many
runs there are.
"""
import os

from harness import TorchTest, main, run_ddrun, script


class Restart(TorchTest):
    def test_a_rank_that_dies_once(self):
        for number in range(int(os.environ.get("DDRUN_TEST_RESTARTS", "5"))):
            with self.subTest(run=number):
                result = self.assert_success(run_ddrun(
                    ["--nproc-per-node=2", "--max-restarts=1", "--label=none", script("die_once.py")]))
                self.assertEqual(sorted(result.out.splitlines()), ["restarted, rank 0: 2", "restarted, rank 1: 2"],
                                 str(result))


if __name__ == "__main__":
    main()
