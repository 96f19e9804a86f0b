"""Several processes that write one file through ddrun: no line is torn, none is lost."""
import collections
import zlib

from harness import TorchTest, main, run, run_ddrun, script, DDRUN
from documents import write_files


class OneFile(TorchTest):
    needs = ()
    ranks, short, long = 4, 1500, 60

    def check(self, file, prefix):
        """Every line is whole, comes once, and after those that its writer wrote before."""
        written = collections.defaultdict(list)
        with open(file, "rb") as lines:
            for line in lines:
                self.assertTrue(line.endswith(b"\n"))
                label, line = prefix(line[:-1])
                checksum, _, body = line.partition(b" ")
                self.assertEqual(int(checksum, 16), zlib.crc32(body), line[:100])
                rank, who, number = body.split(b" ", 3)[:3]
                if label is not None:
                    self.assertEqual(label, rank)
                written[int(rank), who].append(int(number))
        self.assertEqual(sorted(written), sorted((rank, who) for rank in range(self.ranks)
                                                 for who in (b"left", b"main", b"right")))
        for (_, who), numbers in written.items():
            self.assertEqual(numbers, list(range(self.long if who == b"main" else self.short)))

    def test_redirected_console(self):
        command = '"$0" "$@" >all.log 2>&1'
        self.assert_success(run(["bash", "-c", command, DDRUN, f"--nproc-per-node={self.ranks}", script("lines.py"),
                                 self.short, self.long], cwd=self.tmp))
        self.check(self.tmp / "all.log", lambda line: (line[1:2], line[4:]))

    def test_appended_to_a_file_without_ranks(self):
        file = self.tmp / "all.log"
        file.write_text("")
        command = '"$0" "$@" >>all.log 2>>all.log'
        self.assert_success(run(["bash", "-c", command, DDRUN, f"--nproc-per-node={self.ranks}", "--label=none",
                                 script("lines.py"), self.short, self.long], cwd=self.tmp))
        self.check(file, lambda line: (None, line))

    def test_the_documents_example(self):
        write_files("python-workers.md", self.tmp)
        result = self.assert_success(run_ddrun(["--nproc-per-node=4", self.tmp / "one_file.py"]))
        self.assertEqual(sorted(result.out.splitlines()), sorted(
            f"[{rank}] part {part} step {step}" for rank in range(4) for part in range(2) for step in range(1000)))


if __name__ == "__main__":
    main()
