"""Rank 1 fails in a function that PyTorch's `record` watches; how is the argument."""
import os
import sys

if os.environ["RANK"] != "1":
    sys.exit()  # before PyTorch, which takes time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if sys.argv[1] == "exit":
        sys.exit(7)
    raise ValueError(f"boom in {sys.argv[1]}")


main()
