#!/usr/bin/env python3
"""hardened.py PROGRAM…: what SECURITY.md promises of released programs, read from the installed files and their symbols
(.debug/PROGRAM.debug). -ftrivial-auto-var-init leaves nothing that could be told from other code."""
import bisect
import os
import platform
import re
import subprocess
import sys


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def faults(program):
    debug = os.path.join(os.path.dirname(program), ".debug", os.path.basename(program) + ".debug")
    headers = "\n".join(lines("readelf", "--program-headers", "--dynamic", "--wide", program))
    if not re.search(r"GNU_STACK .* RW +0x", headers):
        yield "its stack is executable"
    if "GNU_RELRO" not in headers or not re.search(r"FLAGS_1.* NOW", headers):
        yield "its relocations stay writable"

    symbols = [line.split(maxsplit=2) for line in lines("nm", "--demangle", debug) + lines("nm", "--dynamic", program)]
    names = {words[-1].split("@")[0].split("(")[0] for words in symbols}
    if not {"__memcpy_chk", "__snprintf_chk", "__fdelt_chk"} & names:
        yield "no call is checked by _FORTIFY_SOURCE"
    if "std::__glibcxx_assert_fail" not in names:
        yield "the C++ library's assertions are off"
    if platform.machine() != "x86_64":
        return
    functions = sorted((int(words[0], 16), words[1]) for words in symbols if len(words) == 3 and words[1] in "TtWw" and "ddrun::" in words[2])
    starts = [start for start, _ in functions]
    marked, with_canary, probes = set(), set(), 0
    for line in lines("objdump", "--disassemble", "--no-show-raw-insn", program):
        if "endbr64" in line:
            marked.add(int(line.split(":")[0], 16))
        elif "%fs:0x28" in line:
            with_canary.add(bisect.bisect(starts, int(line.split(":")[0], 16)))
        elif re.search(r"or[ql] +\$0x0,\(%rsp\)", line):
            probes += 1
    if unmarked := [f"{start:x}" for start, kind in functions if kind in "TW" and start not in marked]:
        yield f"jumps may reach functions without endbr64: {unmarked[:3]} of {len(functions)}"
    if len(with_canary) < len(functions) / 20:
        yield f"{len(with_canary)} of {len(functions)} functions check their stack"
    if not probes:
        yield "large stack frames are not probed"


found = [f"{program}: {fault}" for program in sys.argv[1:] for fault in faults(program)]
sys.exit("\n".join(found) or 0)
