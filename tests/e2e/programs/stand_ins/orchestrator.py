#!/usr/bin/env python3
"""An orchestrator: orchestrator.py ROLE:NUMBER ROUTER_URL ENVIRONMENT_URL... It asks them STEPS times (5), and when the trainer
has ended EVALUATIONS times more (0)."""
import sys
import time
import urllib.request

from stand_in import OUTPUT, begin, say, setting, wait_for

name, router, *environments = sys.argv[1:]
begin(name)


def ask(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


def step(what):
    say(f"{what}: {ask(router + '/generate')}, rewards {' '.join(map(ask, environments))}")
    time.sleep(0.1)


for number in range(int(setting("STEPS", 5))):
    step(f"step {number}")
    if OUTPUT:
        (OUTPUT / "stepped").touch()
evaluations = int(setting("EVALUATIONS", 0))
if evaluations:
    wait_for("trained")
for number in range(evaluations):
    step(f"evaluation {number}")
say("ends")
