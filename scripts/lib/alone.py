"""alone.py JOBS SECONDS <NAMES   each of these C++ files goes through the compiler by itself, for errors and warnings only.

build/alone has the commands. A header that its source begins with is checked by that source. What has not begun after
SECONDS is named in build/alone/left-out.
"""
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time

jobs, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
with open("build/alone/compile_commands.json", encoding="utf-8") as file:
    units = json.load(file)
commands = {os.path.relpath(unit["file"]): unit["command"].partition(" -o ")[0] + f" {unit['file']}" for unit in units}
folders = " ".join(dict.fromkeys(word for unit in units for word in unit["command"].split() if word.startswith("-I")))


def module_and_stem(name):
    return tuple(name.split("/")[:2]), os.path.basename(name).partition(".")[0]


sources = collections.defaultdict(list)
for name in commands:
    sources[module_and_stem(name)].append(name)


def checked_by(name):
    """The file that is to be compiled for this one."""
    found = sources.get(module_and_stem(name), [])
    if name.endswith(".hpp") and len(found) == 1:  # of several any may mean another header
        with open(found[0], encoding="utf-8") as text:
            first = re.search(r'^#include "(.*)"', text.read(), re.MULTILINE)
        if first and name.endswith(f"/{first[1]}"):
            return found[0]
    return name


def check(name):
    if time.monotonic() > end:
        return None
    if not (command := commands.get(name)):
        # As a file beside it; headers of tests also include those of the modules that they are for.
        unit = max(units, key=lambda unit: len(os.path.commonpath([unit["file"], os.path.abspath(name)])))
        command = unit["command"].partition(" -o ")[0] + f" {folders} -include {os.path.abspath(name)} -x c++ /dev/null"
    print(name, flush=True)
    return subprocess.call(f"{command} -fsyntax-only", shell=True, cwd="build/alone")


names = [name for name in dict.fromkeys(sys.stdin.read().split()) if name.endswith((".cpp", ".hpp")) and os.path.exists(name)]
names = [name for name in dict.fromkeys(map(checked_by, names)) if name in commands or name.endswith(".hpp")]
with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    results = list(pool.map(check, names))
with open("build/alone/left-out", "w", encoding="utf-8") as file:
    file.writelines(f"{name}\n" for name, result in zip(names, results) if result is None)
print(*(f"{name} does not compile by itself" for name, result in zip(names, results) if result), sep="\n")
sys.exit(any(results))
