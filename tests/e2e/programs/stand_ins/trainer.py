#!/usr/bin/env python3
"""A trainer of several ranks. It does TRAINER_STEPS steps (5); then rank 0 writes OUTPUT_DIR/checkpoint for SAVE_SECONDS
(0.2), which SIGTERM does not interrupt. With SAVE_AT_TERM=1 SIGTERM begins it."""
import os
import signal
import socket
import sys
import time

from stand_in import OUTPUT, begin, say, setting

rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
begin(f"trainer:{rank}")
say(f"devices {os.environ.get('CUDA_VISIBLE_DEVICES')}")
socket.create_connection((os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])).close()


def save():
    if rank != "0" or not OUTPUT:
        return
    signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM"))
    say("saves")
    with open(OUTPUT / "checkpoint", "w", encoding="ascii") as file:
        for part in range(100):
            print("part", part, file=file, flush=True)
            time.sleep(setting("SAVE_SECONDS", 0.2) / 100)
        print("end", file=file)


def stop(*_):
    save()
    sys.exit()


if setting("SAVE_AT_TERM", 0):
    signal.signal(signal.SIGTERM, stop)
say(f"rank {rank} of {size}")
for _ in range(int(setting("TRAINER_STEPS", 5))):
    time.sleep(0.1)
save()
say("ends")
if OUTPUT and rank == "0":
    (OUTPUT / "trained").touch()
