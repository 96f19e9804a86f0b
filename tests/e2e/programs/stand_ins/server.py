#!/usr/bin/env python3
"""An inference server: server.py ROLE:NUMBER PORT. It listens after LISTENS_AFTER seconds (0.2), or when LISTENS_WHEN is a
file in OUTPUT_DIR, and its /health is 503 for HEALTHY_AFTER seconds more (0.2). Its engine is a child in a session of its
own, as vLLM's is; with ENGINE_IGNORES_TERM=1 only SIGKILL ends that."""
import os
import subprocess
import sys
import time

from stand_in import begin, say, serve, setting, wait_for

name, port = sys.argv[1:]
begin(name)
say(f"devices {os.environ.get('CUDA_VISIBLE_DEVICES')}")
ignore = "trap '' TERM; " if setting("ENGINE_IGNORES_TERM", 0) else ""
subprocess.Popen(["sh", "-c", f"{ignore}exec sleep 600"], start_new_session=True)
listens_after, healthy_after = setting("LISTENS_AFTER", 0.2), setting("HEALTHY_AFTER", 0.2)
time.sleep(listens_after)
if "LISTENS_WHEN" in os.environ:
    wait_for(os.environ["LISTENS_WHEN"])
healthy_at = time.monotonic() + healthy_after


def answer(path):
    if time.monotonic() < healthy_at:
        return 503, "loading"
    if path == "/health":
        say("healthy")
    return 200, name


serve(port, answer)
