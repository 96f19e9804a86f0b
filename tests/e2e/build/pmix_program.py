#!/usr/bin/env python3
"""pmix_program.py FILE: ddrun-pmix runs beside any C library of the GNU kind, and is built alike in each preset."""
import re
import subprocess
import sys


def readelf(option):
    return subprocess.run(["readelf", "--wide", option, sys.argv[1]], check=True, capture_output=True, text=True).stdout


faults = []
needed = sorted(re.findall(r"NEEDED.*\[(.*)\]", readelf("--dynamic")))
# The second is part of the first since glibc 2.34, and an empty file then.
if needed != ["libc.so.6", "libdl.so.2"]:
    faults.append(f"it needs {needed}")
if "No version information" not in readelf("--version-info"):
    faults.append("it asks for a version of a library")
if sanitizers := re.findall(r"\b__[atu]b?san_\w+", readelf("--symbols")):
    faults.append(f"it calls a sanitizer: {sanitizers[0]}")
headers = readelf("--program-headers")
if not re.search(r"GNU_STACK .* RW +0x", headers) or "GNU_RELRO" not in headers:
    faults.append("its stack is executable, or its relocations stay writable")
sys.exit("\n".join(faults) or 0)
