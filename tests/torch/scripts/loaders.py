"""A rank with three DataLoaders whose workers are made by fork, spawn and forkserver.

loaders.py FOLDER                 takes every sample from each of them once
loaders.py FOLDER hold [METHOD…]  takes samples for ever, from all of them or from those of these kinds
Writes the pids of itself and of the loaders' workers into FOLDER/rank_N.json, once all of them work.
"""
import json
import os
import sys
import time

import torch

METHODS = ("fork", "spawn", "forkserver")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, os.getpid(), os.getppid()


class ForEver(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield 0, os.getpid(), os.getppid()
            time.sleep(0.02)


def main():
    folder, hold, rank = sys.argv[1], sys.argv[2:3] == ["hold"], int(os.environ["RANK"])
    facts = {"rank": rank, "pid": os.getpid(), "parent": os.getppid(), "workers": {}, "makers": {}, "samples": {}}
    loaders = {method: torch.utils.data.DataLoader(
        ForEver() if hold else Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method,
        persistent_workers=True) for method in sys.argv[3:] or METHODS}
    runs = {method: iter(loader) for method, loader in loaders.items()}
    for method, run in runs.items():
        batches = [next(run)] if hold else list(run)
        facts["samples"][method] = sorted(index for batch in batches for index in batch[0].tolist())
        facts["workers"][method] = sorted({pid for batch in batches for pid in batch[1].tolist()})
        facts["makers"][method] = batches[0][2][0].item()
    with open(f"{folder}/rank_{rank}.part", "w", encoding="utf-8") as file:
        json.dump(facts, file)
    os.rename(f"{folder}/rank_{rank}.part", f"{folder}/rank_{rank}.json")
    while hold:
        for run in runs.values():
            next(run)
    print(f"rank {rank} has taken {sum(map(len, facts['samples'].values()))} samples", flush=True)


if __name__ == "__main__":
    main()
