"""docs/several-machines-failures.md, docs/ssh.md and the tests agree about which failures there are."""

import re
import unittest

import table
from netcase import HERE, main


class Table(unittest.TestCase):
    def test_each_row_has_a_test_and_each_test_a_row(self):
        tried = []
        for file in sorted(HERE.glob("test_*.py")):
            tried += re.findall(r'self\.row\("([a-z0-9-]+)"\)', file.read_text(encoding="utf-8"))
        self.assertEqual(sorted(set(tried)), sorted(table.ROWS))

    def test_a_row_is_read(self):
        row = table.ROWS["crash"]
        self.assertEqual((row.code, row.seconds), (125, 3.5))
        self.assertEqual(row.says, [r"h2.*was\ lost"])


if __name__ == "__main__":
    main()
