"""What the pages of docs/ show is run, and has to print what they say."""
import re
import unittest

from documents import DOCS, pattern, run_page
from harness import TorchTest, main

PAGES = ["coming-from-torchrun.md", "python-workers.md", "store.md"]


class Documents(TorchTest):
    def test_pages(self):
        for page in PAGES:
            with self.subTest(page):
                folder = self.tmp / page
                folder.mkdir()
                self.assertGreater(run_page(page, folder), 0)

    def test_pages_that_show_commands_are_run(self):
        shown = [file.name for file in DOCS.glob("*.md") if "```console" in file.read_text(encoding="utf-8")]
        self.assertEqual(sorted(shown), sorted(PAGES))


class Pattern(unittest.TestCase):
    def test_what_matches(self):
        for expected, printed, matches in (
                (["a", "b"], "a\nb\n", True), (["a", "b"], "a\nb\nc\n", False), (["a.c"], "abc\n", False),
                (["a ... c"], "a any thing c\n", True), (["a ... c"], "a b\nc\n", False),
                (["a", "...", "c"], "a\nx\ny\nc\n", True), (["a", "...", "c"], "a\nc\n", True),
                (["a", "...", "c"], "a\nx\n", False), ([], "", True), ([], "a\n", False), (["..."], "", True)):
            with self.subTest(expected=expected, printed=printed):
                self.assertEqual(bool(re.fullmatch(pattern(expected), printed)), matches)


if __name__ == "__main__":
    main()
