"""python -m ddrun …: ddrun, whose Python workers run with this interpreter unless PYTHON_EXEC names another one."""

import os
import sys

from ddrun import find_ddrun


def main():
    if sys.executable:
        os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        program = find_ddrun()
    except FileNotFoundError as error:
        sys.exit(f"ddrun: error: {error}")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
