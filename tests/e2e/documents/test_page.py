#!/usr/bin/env python3
"""test_page.py PAGE: what this page shows is run, and has to print what it says (tests/support/documents.py says how)."""
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main  # noqa: E402
from documents import Page  # noqa: E402

PAGE = ROOT / sys.argv.pop()


class Shown(unittest.TestCase):
    def test_what_the_page_shows(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-page-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        page = Page(PAGE, folder).run()
        for place, reason in page.left_out:
            print(f"left out: {place}: {reason}")
        print(f"{PAGE.relative_to(ROOT)}: {page.ran} commands run, {page.files} files, {len(page.left_out)} blocks left out")


if __name__ == "__main__":
    main()
