"""The program of each rank, and the first module of --preload: the folders of its caller come before other imports."""

import json
import os
import sys

if "DDRUN_PYTHON_JOB" in os.environ:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from ddrun import _home

    _home.take_over(json.loads(os.environ["DDRUN_PYTHON_JOB"])["home"])

from ddrun import _worker  # noqa: E402

if __name__ == "__main__":
    _worker.main()
