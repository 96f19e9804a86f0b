"""Uses PyTorch's file timers as a training script would; what rank 1 does in its first attempt is the argument.

stuck   it does not leave a block in time
child   its child process does not
"""
import multiprocessing
import os
import signal
import sys
import time

from torch.distributed.elastic import timer

MODE, RANK = sys.argv[1], int(os.environ["RANK"])
path = os.environ["TORCHELASTIC_TIMER_FILE"]
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def stay(scope, client):
    with timer.expires(after=0.3, scope=scope, client=client):
        time.sleep(600)


timer.configure(timer.FileTimerClient(path))
with open(path, "wb", buffering=0) as fifo:  # a message that is no timer is ignored
    fifo.write(b"garbage\n{}\n" + b"x" * 20000 + b"\n")
    # Nor is the number of a process that is not ours to end.
    fifo.write(b'{"version": 1, "pid": %d, "scope_id": "not ours", "expiration_time": 1, "signal": 9}\n'
               % int(os.environ["NOT_OURS"]))
    fifo.write(b'{"half a li')
for number in range(200):
    with timer.expires(after=1.5, scope=f"in time {number % 7}"):
        pass
print(f"rank {RANK} in attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}: {path}", flush=True)
if RANK == 1 and first and MODE == "stuck":
    stay("train.py#41", timer.FileTimerClient(path, signal=signal.SIGTERM))
if RANK == 1 and first and MODE == "child":
    child = multiprocessing.get_context("fork").Process(
        target=stay, args=("loading", timer.FileTimerClient(path)))
    child.start()
    child.join()
    sys.exit(f"the child ended with {child.exitcode}")
time.sleep(1.7)  # longer than the timers above
sys.stdout.flush()
os._exit(0)
