#!/usr/bin/env python3
"""usage: deciders.py ROOT LIST

Deciders, the sources that LIST names, and the headers of ROOT that they include read their own members and the event:
no socket, thread, clock, variable or cryptography. Prints each line that does not hold to it; then the status is 1.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)')
# <sys/types.h> only names types, such as pid_t.
HEADER = re.compile(
    r"boost/asio|unistd\.h|pthread\.h|sys/(?!types\.h)|openssl/"
    r"|(thread|mutex|shared_mutex|condition_variable|atomic|future|semaphore|latch|barrier|stop_token)$"
)
CALL = re.compile(r"::now\(|\b(secure_)?getenv\b|\brandom_device\b")


def find(name, includer, root):
    """The header of the project that `name` in `includer` means; None: a library's."""
    module = root / "lib" / includer.relative_to(root / "lib").parts[0]
    folders = [includer.parent, module / "src", *module.glob("src/*/"), *root.glob("lib/*/include")]
    return next((file for folder in folders if (file := folder / name).is_file()), None)


def main():
    root = Path(sys.argv[1])
    deciders = [Path(line) for line in Path(sys.argv[2]).read_text().split()]
    includer = dict.fromkeys(deciders)  # of each file that is read
    faults = 0
    for file in (files := list(deciders)):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            included = INCLUDE.match(line)
            if HEADER.match(included[1]) if included else CALL.search(line.split("//")[0]):
                faults += 1
                print(f"{file.relative_to(root)}:{number}: {line.strip()}")
                above = file
                while above := includer[above]:
                    print(f"    included by {above.relative_to(root)}")
            header = find(included[1], file, root) if included else None
            if header and header not in includer:
                includer[header] = file
                files.append(header)
    print(f"{len(deciders)} deciders and {len(files) - len(deciders)} headers were read, {faults} lines are faults")
    return 0 if deciders and len(files) > len(deciders) and not faults else 1


sys.exit(main())
