#!/usr/bin/env python3
"""What pages say in words: links lead somewhere, options, files and presets exist, lines in sentences are understood."""
import functools
import json
import os
import pathlib
import re
import shutil
import socket
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main  # noqa: E402
from documents import Command, Page, parse  # noqa: E402
from running import DDRUN, run  # noqa: E402

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *ROOT.glob("docs/*.md"),
                *ROOT.glob("lib/**/*.md")])
ALLREDUCE = str(pathlib.Path(DDRUN).parent / "ddrun-allreduce")

# Options in the text of pages that belong to other programs, where the program does not stand beside them.
FOREIGN = {
    "benchmarks.md": {"tag-output", "tag", "line-buffer", "bidir"},
    "coming-from-others.md": {"local-rank", "use-fsdp", "mixed-precision", "deepspeed", "multi-prog"},
    "coming-from-torchrun.md": {"local-rank"},
    "schedulers.md": {"kill-on-bad-exit"},
    "integrations.md": {"with"},
    "notebooks.md": {"rank"},
    "python.md": {"ranks-timeout", "ranks-preload", "lf", "junitxml", "pdb"},  # of pytest
}
OTHER_PROGRAMS = re.compile(
    r"(?:^|[\s(|/])(?:\.ci/run|\./\w+|\w+\.py|iperf3|srun|sbatch|salloc|scancel|mpirun|mpiexec|torchrun|"
    r"cmake|cpack|ctest|pkg-config|python3?|pip|git|gdb|py-spy|accelerate|deepspeed|torch\.distributed\.launch|coredumpctl|compute-sanitizer|"
    r"docker|podman|systemd-run|stdbuf|uv|sglang\.launch_server)(?= |$)")


@functools.cache
def options():
    """All that our programs name in their help, without dashes in front and with dashes between words."""
    known = set()
    for args in ([DDRUN, "--help"], [DDRUN, "store", "--help"], [DDRUN, "store", "get", "--help"], [DDRUN, "rendezvous", "-h"],
                 [DDRUN, "secret", "--help"], [DDRUN, "stacks", "--help"], [ALLREDUCE, "--help"]):
        text = run(args).out
        known |= {name.replace("_", "-") for name in re.findall(r"--([a-z][a-z0-9_-]*[a-z0-9])", text)}
    return known


@functools.cache
def help_of(script):
    return run([ROOT / script, "--help"]).out


def prose(page):
    """Its lines outside of blocks, with their numbers."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


def anchors(page):
    """What GitHub makes of a page's headings."""
    found = set()
    for _, line in prose(page):
        if heading := re.match(r"#+ (.*)", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = 0
            while (name if not count else f"{name}-{count}") in found:
                count += 1
            found.add(name if not count else f"{name}-{count}")
    return found


class Words(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for page in PAGES:
            text = "\n".join(line for _, line in prose(page))
            for link in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = (page.parent / file) if file else page
                with self.subTest(page=str(page.relative_to(ROOT)), link=link):
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_the_index_has_every_page(self):
        index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
        self.assertEqual({*re.findall(r"\]\(([\w-]+\.md)\)", index), "README.md"}, {page.name for page in ROOT.glob("docs/*.md")})

    def test_options_exist(self):
        for page in PAGES:
            title = page.relative_to(ROOT)
            if title.name == "CHANGELOG.md":
                continue  # it may speak of what is gone
            text = "\n".join(line for _, line in prose(page))
            if title.name == "coming-from-others.md":  # what stands before the last cell of a row belongs to another launcher
                text = re.sub(r"^\|.*\|(?=[^|]*\|$)", "", text, flags=re.MULTILINE)
            spans = re.findall(r"`([^`]+)`", text)
            spans += [line for block in parse(page) for _, line in block.lines if block.language in ("", "sh", "console")]
            for span in spans:
                for found in re.finditer(r"(?<![\w-])--([a-zA-Z][\w-]*\w)", span):
                    name = found[1].replace("_", "-")
                    before = span[:found.start()]
                    if name in options() or name in FOREIGN.get(title.name, ()):
                        continue
                    if script := re.search(r"\b(scripts/[\w-]+) [^|;&]*$", before):
                        with self.subTest(page=str(title), text=span):
                            self.assertIn(f"--{found[1]}", help_of(script[1]))
                        continue
                    if OTHER_PROGRAMS.search(before):
                        continue
                    with self.subTest(page=str(title), text=span):
                        self.fail(f"--{name} is no option of ddrun, ddrun-allreduce or a program that stands before it")

    def test_files_that_are_named_exist(self):
        for page in PAGES:
            text = "\n".join(line for _, line in prose(page))
            for name in re.findall(r"`((?:apps|lib|tests|docs|scripts|configs)/[\w./-]+)`", text):
                with self.subTest(page=str(page.relative_to(ROOT)), name=name):
                    self.assertTrue((ROOT / name).exists())

    def test_lines_in_the_text_are_understood(self):
        """`ddrun …` in a sentence: its options at least, by what says what they mean."""
        tried = 0
        for page in PAGES:
            text = "\n".join(line for _, line in prose(page))
            for line in sorted(set(re.findall(r"`ddrun ([^`]*)`", text))):
                words = line.split()
                if re.search(r"…|[][|<>$]|\b[A-Z]{3,}\b", line) or words[0] in ("agent", "relay"):
                    continue
                if words[0] in ("store", "rendezvous", "secret", "stacks", "env", "version", "completion", "config"):
                    continue  # below
                tried += 1
                words = [word for word in words if not re.fullmatch(r"--dry-run|--help|--hostfile=hosts", word)]
                words = [re.sub(r"=N$", "=2", word) for word in words]
                with self.subTest(page=str(page.relative_to(ROOT)), line=line):
                    result = run([DDRUN, "config", "show", *words])
                    self.assertEqual(result.code, 0, str(result))
        self.assertGreater(tried, 5)

    def test_lines_of_an_answer_run(self):
        """`ddrun …` in a sentence of docs/troubleshooting.md, with programs that stand for the reader's."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-answers-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        page = Page(ROOT / "docs/troubleshooting.md", folder)
        lines = re.findall(r"`(ddrun -[^`]*)`", "\n".join(line for _, line in prose(page.path)))
        self.assertGreater(len(lines), 4)
        for line in lines:
            with self.subTest(line):
                page.run_command(Command(page.path.name, line.replace("\n", " ")), [0])

    def test_what_ddrun_says_in_an_answer(self):
        """Quotes of docs/troubleshooting.md."""
        page = re.sub(r"\s+", " ", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"))
        step = {"SLURM_JOB_ID": 12, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_NODES": 2, "SLURM_STEP_NUM_TASKS": 8, "SLURM_NODEID": 0,
                "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": 0}
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script, socket.create_server(("127.0.0.1", 0)) as taken:
            script.write("import mpi4py\n")
            script.flush()
            port = str(taken.getsockname()[1])
            for words, args, env in (("imports mpi4py, and MPI is off", ["-n2", script.name], {}),
                                     ("srun started 8 ddruns on 2 nodes", ["true"], step),
                                     (f"port {port} is in use by pid {os.getpid()} (python3", [f"--port={port}", "true"], {})):
                with self.subTest(words):
                    self.assertIn(words.replace(port, "8000").replace(str(os.getpid()), "4703"), page)
                    self.assertIn(words, run([DDRUN, *args], env=env).err)

    def test_every_module_has_its_line(self):
        """The source map of docs/architecture.md, and the files in it."""
        text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
        for module in ROOT.glob("lib/*/"):
            with self.subTest(module=module.name):
                self.assertIn(f"| `lib/{module.name}/` |", text)
        rows = re.findall(r"^\| `(lib/\w+)/` \| [^|]* \| (`[^|]*`) \|$", text, re.MULTILINE)
        self.assertGreater(len(rows), 5)
        for folder, files in rows:
            for name in re.findall(r"`([^`]+)`", files):
                with self.subTest(folder=folder, name=name):
                    self.assertTrue(list((ROOT / folder).rglob(name)))

    def test_figures(self):
        """README's table of figures repeats what docs/benchmarks.md says."""
        table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Why\n\n")[1].split("\n\n")[0]
        figures = re.findall(r"\b[0-9.]+ (?:s|ms|MB)\b", table)
        self.assertGreater(len(figures), 7)
        benchmarks = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
        for figure in figures:
            with self.subTest(figure=figure):
                self.assertRegex(benchmarks, rf"(?<![0-9.]){re.escape(figure)}\b")

    def test_pictures(self):
        """README's terminals, drawn by scripts/picture: text in both themes, with the words that the picture is there for."""
        shown = re.findall(r"^!\[[^]]+\]\((docs/pictures/[^)]+)\)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(shown, [f"docs/pictures/{name}.svg" for name in ("failure", "progress", "hang", "machines")])
        words = {"failure": {"torchrun": [r"Root Cause \(first observed failure\):", "To enable traceback see"],
                             "ddrun": [r"\[0-3\]\s+FileNotFoundError", r"rank \d exited with code 1"]},
                 "progress": {"torchrun": [r"rank\d: +\d+%\|"], "ddrun": [rf"rank{rank}: +\d+%\|" for rank in range(4)]},
                 "hang": {"torchrun": [r"Root Cause \(first observed failure\):"],
                          "ddrun": [r"rank 2 \(pid \d+\): sleeps", r"load_batch +train.py:6", "rank 2 held up the others"]},
                 "machines": {"ddrun": ["ranks 0-11,13-23 wait for rank 12 on node2: load_batch", "all_reduce +torch/"]}}
        for name in shown:
            path = ROOT / name
            with self.subTest(name):
                self.assertLess(path.stat().st_size, 30_000)
                tree = xml.etree.ElementTree.parse(path).getroot()
                self.assertEqual({element.tag.rpartition("}")[2] for element in tree.iter()}, {"svg", "style", "g", "rect", "text"})
                self.assertIn("prefers-color-scheme:dark", "".join(tree.itertext()))
                windows = {group.get("id"): "\n".join(group.itertext()) for group in tree.iter("{http://www.w3.org/2000/svg}g")}
                self.assertEqual(list(windows), list(words[path.stem]))
                for launcher, expected in words[path.stem].items():
                    for word in expected:
                        self.assertRegex(windows[launcher], word)

    def test_both_commands(self):
        """README names what sets everything up, and what continuous integration calls."""
        block = (ROOT / "README.md").read_text(encoding="utf-8").split("## Install")[1].split("```")[1]
        commands = re.findall(r"^scripts/\w+", block, re.MULTILINE)
        called = re.findall(r"/(scripts/\w+)", (ROOT / ".ci/run").read_text(encoding="utf-8"))
        self.assertEqual(commands, ["scripts/quickstart", *called])
        self.assertIn("within a quarter of\nan hour on two CPUs", help_of("scripts/test"))

    def test_versions(self):
        """docs/versioning.md has the numbers of the sources."""
        page = (ROOT / "docs/versioning.md").read_text(encoding="utf-8")
        for source, number, sentence in (
                ("lib/rendezvous/PROTOCOL.md", r"`u16` protocol version \((\d+)\)", "has a number too, now {}"),
                ("pyproject.toml", r'requires-python = ">=([\d.]+)"', "**Python**: {} or newer"),
                ("scripts/lib/pytorch.sh", r"torch==(\d+\.\d+)", "PyTorch {};"),
                ("CMakeLists.txt", r"project\(ddrun VERSION (\d+\.\d+)", "find_package(ddrun {})"),
                ("scripts/cmake/DdrunInstall.cmake", r"COMPATIBILITY (SameMinorVersion)", "While the minor version stays")):
            found = re.search(number, (ROOT / source).read_text(encoding="utf-8"))
            self.assertIsNotNone(found, source)
            self.assertIn(sentence.format(found[1]), re.sub(r"\s+", " ", page))
        for schema in ("report", "stacks"):
            keys = json.loads((ROOT / f"docs/schemas/{schema}.schema.json").read_text(encoding="utf-8"))
            self.assertIn("schema_version", keys["required"])

    def test_presets(self):
        """The table of presets in CONTRIBUTING.md."""
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| Preset |")[1].split("\n\n")[0]
        presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]
        self.assertEqual(sorted(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)),
                         sorted(preset["name"] for preset in presets if not preset.get("hidden")))

    def test_first_words(self):
        """Every form of the table in docs/options.md that ends by itself."""
        text = (ROOT / "docs/options.md").read_text(encoding="utf-8").split("## First words")[1]
        forms = re.findall(r"^\| `ddrun ([^`]*)` \|", text, re.MULTILINE)
        self.assertGreater(len(forms), 5)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-words-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        for form in forms:
            first = form.split()[0]
            if first in ("agent", "relay", "rendezvous", "stacks", "store"):
                continue
            lines = [""]
            for word in form.replace("\\|", "|").split():
                kinds = ["", word[1:-1]] if word.startswith("[") else word.split("|")
                lines = [f"{line} {kind}".strip() for line in lines for kind in kinds if kind != "options"]
            for line in lines:
                with self.subTest(line=line):
                    result = run([DDRUN, *line.split()], env={"HOME": folder, "XDG_CONFIG_HOME": folder / line.replace(" ", "")})
                    self.assertEqual(result.code, 0, str(result))
                    self.assertTrue(result.out)

    def test_labels(self):
        """The table of prefixes in docs/output.md."""
        text = (ROOT / "docs/output.md").read_text(encoding="utf-8").split("What stands before a line:")[1].split("\n\n")[1]
        rows = re.findall(r"^\| `(--[^`]+)` \| `([^`]+)`", text, re.MULTILINE)
        self.assertGreater(len(rows), 3)
        for option, prefix in rows:
            shown = re.sub(r"\d+", r"\\d", re.escape(prefix).replace("node7", r"[\w.-]+"))
            if option == "--timestamps":
                shown = r"\d\d:\d\d:\d\d\.\d\d\d \[\d\] "
            with self.subTest(option=option):
                result = run([DDRUN, "--nproc-per-node=2", option, "echo", "hello"])
                self.assertRegex(result.out, f"^(?:{shown}hello\n){{2}}$")


if __name__ == "__main__":
    main()
