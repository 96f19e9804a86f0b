"""What a rank takes over from the program that called ddrun, so that functions run there as they would at home."""

import os
import sys


def of_caller():
    """In the caller: what `take_over` needs, picklable."""
    return {"path": [os.path.abspath(folder) for folder in sys.path]}


def take_over(home):
    """In a rank, and in the server of --preload before it imports modules."""
    sys.path[:] = home["path"]
