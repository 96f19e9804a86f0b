"""Rank 1 fails in a function that PyTorch's `record` watches; with the argument in its words."""
import os
import sys

if os.environ["RANK"] != "1":
    sys.exit()  # before PyTorch, which takes time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise ValueError(f"boom in {sys.argv[1]}")


main()
