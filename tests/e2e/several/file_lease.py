#!/usr/bin/env python3
"""A lease's program for tests: all machines are this one, and a file is the engine. See lib/lease/PROTOCOL.md.

usage: file_lease.py FILE

FILE has the state as JSON; while FILE.away exists the engine cannot be reached. Of what the agent of pid N has been told
FILE.told.N has the last leader's term.
"""
import fcntl
import json
import os
import select
import sys
import time

path = sys.argv[1]
ttl, address, campaigns, tick, told, away = 5.0, "%", False, 0, None, False


def new_name():
    return "%d.%d" % (os.getpid(), time.monotonic_ns())


me = new_name()


def say(text):
    print(text, flush=True)


def with_state(change):
    """What `change` says of the state, which it may change, under the lock."""
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(path) as file:
                state = json.load(file)
        except FileNotFoundError:
            state = {"term": 0, "holder": "", "until": 0, "address": "%", "verdict": "", "agent": 0}
        before = dict(state)
        if state["holder"] and state["until"] < time.monotonic():
            state["holder"] = ""
        result = change(state)
        if state != before:
            with open(path + ".new", "w") as file:
                json.dump(state, file)
            os.rename(path + ".new", path)
        return result


def renew(state):
    if state["holder"] == me or (campaigns and not state["holder"] and not state["verdict"]):
        if state["holder"] != me:
            state.update(term=state["term"] + 1, holder=me, agent=os.getppid())
        state.update(until=time.monotonic() + ttl, address=address)
    return dict(state)


def give_back(state):
    if state["holder"] == me:
        state["holder"] = ""


def depose(term):
    def change(state):
        if state["term"] == term and state["holder"] != me:
            state["holder"] = ""
    return change


def record(text):
    def change(state):
        if state["holder"] != me or state["verdict"]:
            return state["verdict"] == text
        state["verdict"] = text
        return True
    return change


def look(number):
    """Renews at a tick only; between two it only tells what has changed."""
    global told
    state = with_state(renew if number else dict)
    if state["verdict"]:
        say("verdict " + state["verdict"])
    if state["holder"] == me:
        if number:
            say("mine %d %d" % (state["term"], number))
        told = None
        return
    now = (state["term"], state["address"]) if state["holder"] else None
    if number or now != told:
        say("leader %d %s" % now if now else "none")
        if now:
            with open("%s.told.%d" % (path, os.getppid()), "w") as file:
                file.write(str(now[0]))
    told = now


def answer(words):
    global ttl, address, campaigns, tick
    if words[0] == "job":
        ttl = int(words[2]) / 1000
    elif words[0] == "campaign":
        address, campaigns = words[1], True
        if tick:
            look(tick)
    elif words[0] == "tick":
        tick = int(words[1])
        look(tick)
        say("done %d" % tick)
    elif words[0] == "depose":
        with_state(depose(int(words[1])))
    elif words[0] == "resign":
        campaigns = False
        with_state(give_back)
        say("resigned")
    elif words[0] == "verdict":
        say("recorded" if with_state(record(words[1])) else "refused there is one, or I do not lead")


rest = b""
while True:
    ready = select.select([0], [], [], 0.05)[0]
    was_away, away = away, os.path.exists(path + ".away")
    if away != was_away and away:
        say("trouble the engine is away")
    if ready:
        got = os.read(0, 65536)
        if not got:
            break
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            words = line.decode().split(" ")
            if away and words[0] == "tick":
                say("done " + words[1])
            elif away and words[0] == "resign":
                campaigns, me = False, new_name()  # what it held runs out
                say("resigned")
            elif away and words[0] == "depose":
                pass
            elif away and words[0] == "verdict":
                say("refused the engine is away")
            elif away and words[0] == "campaign":
                address, campaigns = words[1], True
            else:
                answer(words)
    elif tick and not away:
        look(0)
with_state(give_back)
