#!/usr/bin/env python3
"""usage: sizes.py ROOT

scripts/structure --check: what it counts and how it fails, on a small tree, and that it holds for ROOT.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(sys.argv[1])


def check(tree):
    done = subprocess.run([root / "scripts/structure", "--check", tree], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def lines(count, line="  step();\n"):
    return line * count


def numbered(count, line):
    return "".join(line.format(i) for i in range(count))


def expect(sources, listed, *rows):
    """With `sources` and the list `listed`, these rows are printed and no others."""
    with tempfile.TemporaryDirectory() as dir:
        for name, text in {**sources, "scripts/lib/sizes.txt": listed}.items():
            file = Path(dir, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        status, output = check(dir)
    if output.splitlines() != list(rows) or status != (1 if rows else 0):
        sys.exit(f"FAILED: with the list {listed!r} the status is {status}, not for {rows}:\n{output}")


status, report = check(root)
if "Universal Ctags is missing" in report:
    # Where the other tools of scripts/lint are installed, this one is missing by mistake.
    if shutil.which("shellcheck") and shutil.which("clang-format"):
        sys.exit(f"FAILED: {report}")
    print(f"SKIPPED: {report}")
    sys.exit(0)

# One of each kind at its limit. Declared in the class and defined below it is one function; so are all `on`.
members = "namespace ddrun::a {\nstruct Values {\n" + numbered(30, "  int v{0} = 0;\n") + "};\n}\n"
functions = (
    "namespace ddrun {\nclass C {\n  void on(int);\n  void on(long) {}\n  void handle(int);\n  void handle(long);\n"
    + numbered(38, "  void f{0}();\n") + "  class Impl;\n};\nclass C::Impl {\n  int one_ = 0;\n  void go() {}\n};\n"
    + numbered(38, "void C::f{0}() {{}}\n") + "}\n"
)
function = "namespace ddrun {\nnamespace {\nint work(int x) {\n" + lines(54) + "  const auto f = [] {\n    step();\n  };\n  return x;\n}\n}\n}\n"
at_limits = {
    "lib/a/include/values.hpp": members,
    "lib/a/src/c.cpp": functions,
    "lib/a/src/work.cu": function,
    "apps/a/long.cpp": lines(800, "// x\n"),
}
expect(at_limits, "")
above = {
    "lib/a/include/values.hpp": members.replace("v0 = 0;", "v0 = 0;\n  int more = 0;"),
    "lib/a/src/c.cpp": functions.replace("  void f0();", "  void f0();\n  bool more() const;"),
    "lib/a/src/work.cu": function.replace("return", "step();\n  return"),
    "apps/a/long.cpp": lines(801, "// x\n"),
}
rows = ["file apps/a/long.cpp 801", "functions C 41", "lines work 61", "members a::Values 31"]
sources = ["apps/a/long.cpp", "lib/a/src/c.cpp", "lib/a/src/work.cu", "lib/a/include/values.hpp"]
for source, row, limit in zip(sources, rows, (800, 40, 60, 30)):
    expect({**at_limits, source: above[source]}, "", f"{row} -  # above {limit}: split it")
allowed = "".join(f"{row} c0ffee\n" for row in rows)
expect(above, "# kind, name, figure, commit\n\n" + allowed)
expect(above, allowed.replace("801", "900"), "file apps/a/long.cpp 801 c0ffee  # shrink the entry, it was 900")
longer = {**above, "apps/a/long.cpp": lines(802, "// x\n")}
expect(longer, allowed, "file apps/a/long.cpp 802 c0ffee  # above 801: split it")
expect(at_limits, f"{rows[1]} c0ffee\n", f"{rows[1]} c0ffee  # at most 40 or gone: remove the entry")
expect(at_limits, "lines gone 90 c0ffee\n", "lines gone 90 c0ffee  # at most 60 or gone: remove the entry")

print(report, end="")
sys.exit(status)
