"""The program of each rank, and the first module of --preload: the folders of its caller come before other imports."""

import json
import os
import sys

if "DDRUN_PYTHON_JOB" in os.environ:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if __name__ == "__main__":
        from ddrun import _worker

        _worker.main()

    from ddrun import _connection, _home

    connection = _connection.connect(json.loads(os.environ["DDRUN_PYTHON_JOB"]), None)
    connection.close()
    _home.take_over(connection.welcome["home"])

    from ddrun import _task, _worker  # noqa: F401  for the ranks

    _task.base_pickler()
