"""A PyTorch of before 2.1 under ddrun: Debian 12's own, for the interpreter at /usr/bin/python3."""
import json
import os
import pathlib
import re
import unittest

from harness import DDRUN, TorchTest, main, run_ddrun, script

SYSTEM_PYTHON = "/usr/bin/python3"
SYSTEM_TORCH = pathlib.Path("/usr/lib/python3/dist-packages/torch/version.py")


class OldDialect(TorchTest):
    @classmethod
    def setUpClass(cls):
        found = re.search(r"__version__ = '(\d+)\.(\d+)", SYSTEM_TORCH.read_text() if SYSTEM_TORCH.exists() else "")
        if not found:
            raise unittest.SkipTest(f"no PyTorch for {SYSTEM_PYTHON}: on Debian 12, run scripts/setup --pytorch-old")
        if (version := tuple(map(int, found.groups()))) > (2, 0):
            raise unittest.SkipTest(f"the PyTorch of {SYSTEM_PYTHON} is {version[0]}.{version[1]}, newer than 2.0")
        if not os.access(DDRUN, os.X_OK):
            raise AssertionError(f"{DDRUN} is not there: build ddrun first")

    def job(self, *args):
        return self.assert_success(run_ddrun(["--nproc-per-node=2", "--label=none", *args],
                                             env={"PYTHON_EXEC": SYSTEM_PYTHON}))

    def test_store_and_groups(self):
        self.job(script("old_dialect.py"), self.tmp)
        ours, theirs = (json.loads((self.tmp / f"rank_{rank}.json").read_text()) for rank in range(2))
        self.assertTrue(ours["version"].startswith(("1.", "2.0")), ours["version"])
        self.assertIs(ours["is_torchelastic_launched"], True)
        expected = {"all_reduce": 3.0, "new_group 0": 1.0, "new_group 1": 3.0,
                    "all_gather_object": ["rank 0", "rank 1"], "gradient": [[1.0, 1.0, 1.0]]}
        self.assertEqual([ours["groups"], theirs["groups"]], [expected, expected])
        self.assertGreater(len(theirs["store"]), 15)
        for name, result in theirs["store"].items():
            with self.subTest(name):
                self.assertEqual(ours["store"][name], result)

    def test_restart(self):
        result = self.job("--max-restarts=1", script("die_once.py"))
        self.assertEqual(sorted(result.out.splitlines()), ["restarted, rank 0: 2", "restarted, rank 1: 2"], str(result))


if __name__ == "__main__":
    main()
