#!/usr/bin/env python3
"""Pages that are wrong are noticed, and those that are right are not."""
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main  # noqa: E402
from documents import Page, pattern  # noqa: E402


class Pages(unittest.TestCase):
    """That a page which is wrong is noticed."""

    def page(self, *lines):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-page-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        (folder / "page.md").write_text("\n".join([*lines, ""]))
        (folder / "place").mkdir()
        return Page(folder / "page.md", folder / "place")

    def test_right_ones(self):
        for lines, ran, left_out in (
                (["```", "true", "ddrun true", "```"], 2, 0),
                (["```console", "$ ddrun echo one", "one", "$ false", "$ echo $?", "1", "```"], 3, 0),
                (["```sh say.sh", "#!/bin/sh", "echo $1", "```", "", "```console", "$ ./say.sh word", "word", "```"], 1, 0),
                (["<!-- not run: needs a mountain -->", "```", "false", "```"], 0, 1),
                (["<!-- needs: no-such-program -->", "```", "false", "```"], 0, 1),
                (["<!-- ends with: 0, 3 -->", "```", "(exit 3)", "```"], 1, 0),
                (["<!-- before: touch x -->", "```", "test -e x", "```"], 2, 0),
                (["<!-- on 2 machines -->", "```", "ddrun --insecure --nnodes=2 --rdzv-endpoint=node0:29400 true", "```"], 1, 0),
                (["<!-- measured -->", "```console", "$ echo 1.25", "17.5", "```"], 1, 0),
                (["```text", "a picture", "```"], 0, 0)):
            with self.subTest(lines=lines):
                page = self.page(*lines).run()
                self.assertEqual((page.ran, len(page.left_out)), (ran, left_out))

    def test_wrong_ones(self):
        for lines in (["```", "false", "```"], ["```console", "$ echo one", "two", "```"], ["```console", "$ echo one", "```"],
                      ["```console", "$ false", "```"], ["```console", "no command", "```"], ["```python", "print()", "```"],
                      ["```text", "$ ls", "```"], ["```text", "ddrun -n 2 ./train", "```"], ["```", "```"], ["```", "true"],
                      ["<!-- not run: no block -->", "text"]):
            with self.subTest(lines=lines), self.assertRaises(AssertionError):
                self.page(*lines).run()

    def test_what_stands_for_what(self):
        for expected, printed, matches in (
                (["a", "b"], "a\nb\n", True), (["a", "b"], "a\nb\nc\n", False), (["a.c"], "abc\n", False),
                (["a ... c"], "a any thing c\n", True), (["a ... c"], "a b\nc\n", False),
                (["a", "...", "c"], "a\nx\ny\nc\n", True), (["a", "…", "c"], "a\nc\n", True),
                (["a", "...", "c"], "a\nx\n", False), ([], "", True), ([], "a\n", False), (["..."], "", True),
                (["after 0.1 s (pid 4703 on node7)"], "after 78 ms (pid 1 on my-host.example)\n", True),
                (["after 0.1 s"], "after x s\n", False), (["a  b"], "a    b\n", True), (["a b"], "a  b\n", False),
                (["/tmp/ddrun_x7k2p9qa/1"], "/tmp/ddrun_abcdefgh/1\n", True), (["127.0.0.1:29500"], "127.0.0.1:1\n", True)):
            with self.subTest(expected=expected, printed=printed):
                self.assertEqual(bool(re.fullmatch(pattern(expected), printed)), matches)


if __name__ == "__main__":
    main()
