"""docs/several-programs.md: two PyTorch programs in one job, each with the default process group."""

from harness import TorchTest, main, run_ddrun, script

RUNS = 20


class Programs(TorchTest):
    def test_sums_never_mix(self):
        for run in range(RUNS):
            with self.subTest(run=run):
                folder = self.tmp / str(run)
                folder.mkdir()
                part = ["-n2", script("sum_of_roles.py")]
                result = run_ddrun(["--label=none", "--max-restarts=1", *part, "1", folder, ":", "--role=other", *part,
                                    "100", folder], timeout=120)
                self.assertEqual(result.code, 0, result.err)
                self.assertEqual(sorted(result.out.splitlines()), sorted(["2 0", "200 0", "2 1", "200 1"] * 2), result.err)
                self.assertIn("other rank 1 (pid ", result.err)


if __name__ == "__main__":
    main()
