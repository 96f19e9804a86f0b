"""The pages that show PyTorch at work, with it; tests/e2e/documents runs all pages without."""
from harness import TorchTest, VENV, main
from documents import DOCS, ROOT, Page


class Documents(TorchTest):
    def test_pages(self):
        pages = [page for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
                 if "<!-- needs: torch -->" in page.read_text(encoding="utf-8")]
        self.assertTrue(pages)
        for page in pages:
            with self.subTest(page.name):
                folder = self.tmp / page.name
                folder.mkdir()
                self.assertGreater(Page(page, folder, VENV).run().ran, 0)


if __name__ == "__main__":
    main()
