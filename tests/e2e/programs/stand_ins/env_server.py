#!/usr/bin/env python3
"""An environment server: env_server.py ROLE:NUMBER PORT. Each answer is a reward."""
import sys

from stand_in import begin, serve

name, port = sys.argv[1:]
begin(name)
serve(port, lambda path: (200, "1.0"))
