"""A tiny random BERT under Transformers' Trainer; each rank writes what it was told into FOLDER/rank_N.json.

transformers_train.py FOLDER
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

folder = sys.argv[1]
set_seed(7)
arguments = TrainingArguments(
    output_dir=f"{folder}/output", use_cpu=True, report_to=[], save_strategy="no", num_train_epochs=2,
    per_device_train_batch_size=4, logging_steps=1, disable_tqdm=True, seed=7)
config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                    max_position_embeddings=16, num_labels=2)
tokens = torch.randint(0, 32, (16, 8))


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return len(tokens)

    def __getitem__(self, index):
        return {"input_ids": tokens[index], "attention_mask": torch.ones(8, dtype=torch.long),
                "labels": tokens[index, 0] % 2}


trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Data())
output = trainer.train()
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
facts = {
    "rank": arguments.process_index, "local rank": arguments.local_process_index, "world size": arguments.world_size,
    "mode": str(arguments.parallel_mode), "dist rank": dist.get_rank(), "dist world size": dist.get_world_size(),
    "backend": dist.get_backend(), "is_torchelastic_launched": dist.is_torchelastic_launched(),
    "is main": trainer.is_world_process_zero(), "steps": output.global_step, "loss": output.training_loss,
    "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], "sum": total.item(),
    "parameters": [value for p in trainer.model.parameters() for value in p.detach().flatten().tolist()],
}
with open(f"{folder}/rank_{arguments.process_index}.json", "w", encoding="utf-8") as file:
    json.dump(facts, file)
dist.barrier()
sys.stdout.flush()
os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher
