#!/usr/bin/env python3
"""A router: router.py ROLE:NUMBER PORT URL... It forwards each request to the next server."""
import itertools
import sys
import urllib.request

from stand_in import begin, say, serve

name, port, *servers = sys.argv[1:]
begin(name)
say(f"routes to {' '.join(servers)}")
turns = itertools.cycle(servers)


def answer(path):
    try:
        with urllib.request.urlopen(next(turns) + path, timeout=10) as response:
            return response.status, response.read().decode()
    except OSError as error:
        return 502, str(error)


serve(port, answer)
