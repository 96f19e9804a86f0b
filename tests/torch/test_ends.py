"""Drawn programs end as without --preload (tests/e2e/preload/test_ends.py), many of them, with numpy and torch preloaded too."""
import os
import subprocess
import sys

from harness import HERE, PYTHON, TorchTest, main


class Ends(TorchTest):
    needs = ("torch", "numpy")

    def test_drawn_programs(self):
        pythons = ":".join([PYTHON, *filter(None, [os.environ.get("DDRUN_PYTHONS")])])
        subprocess.run([sys.executable, HERE.parent / "e2e/preload/test_ends.py"], check=True,
                       env={**os.environ, "DDRUN_PYTHONS": pythons, "DDRUN_TEST_ENDS": "136", "DDRUN_TEST_SEED": "1000"})


if __name__ == "__main__":
    main()
