"""A small model under Lightning's Trainer; each rank writes what it was told into FOLDER/rank_N.json.

lightning_train.py FOLDER STRATEGY DEVICES [spawns]
"spawns": the script makes its ranks itself, inside one worker, instead of taking them from the launcher.
"""
import json
import logging
import os
import sys
import warnings

import lightning.pytorch as lightning
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
FOLDER, STRATEGY, DEVICES = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.losses = []
        self.seen = []

    def training_step(self, batch, _):
        x, y, number = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.losses.append(loss.item())
        self.seen += number.tolist()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def on_train_end(self):
        trainer = self.trainer
        total = torch.tensor([float(trainer.global_rank + 1)])
        dist.all_reduce(total)
        facts = {
            "rank": trainer.global_rank, "local rank": trainer.local_rank, "world size": trainer.world_size,
            "dist rank": dist.get_rank(), "dist world size": dist.get_world_size(), "backend": dist.get_backend(),
            "environment": type(trainer.strategy.cluster_environment).__name__,
            "is_torchelastic_launched": dist.is_torchelastic_launched(),
            "steps": trainer.global_step, "losses": self.losses, "seen": sorted(self.seen), "sum": total.item(),
            "parameters": [value for p in self.parameters() for value in p.detach().flatten().tolist()],
        }
        with open(f"{FOLDER}/rank_{trainer.global_rank}.json", "w", encoding="utf-8") as file:
            json.dump(facts, file)
        dist.barrier()


def main():
    lightning.seed_everything(7, verbose=False)
    x = torch.randn(32, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True), torch.arange(32))
    trainer = lightning.Trainer(
        strategy=STRATEGY, accelerator="cpu", devices=DEVICES, max_epochs=2, logger=False, default_root_dir=FOLDER,
        plugins=[LightningEnvironment()] if sys.argv[4:] == ["spawns"] else None,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
    print(f"finished: rank {os.environ.get('RANK')}")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher
