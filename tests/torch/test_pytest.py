"""pytest's tests that are marked with `ranks`: what pytest itself says of them."""
import re
import signal
import textwrap

from harness import PYTHON, Running, TorchTest, install, main, wait_until

# Each ends in another way. The mark of the first one would not hold in one process.
ENDS = """
    import os, time, pytest
    pytestmark = pytest.mark.ranks(4)

    def test_pass(rank):
        assert os.environ["WORLD_SIZE"] == "4" and os.environ["RANK"] == str(rank)

    def test_fail(rank, tmp_path):
        print("rank 0" if rank == 0 else "another")
        if rank == 1:
            raise KeyError("train")
        while not (tmp_path / "failed").exists():
            time.sleep(0.01)
        if rank:
            raise EOFError("in vain")

    @pytest.fixture(autouse=True)
    def failed(rank, tmp_path):
        yield
        if rank == 1:
            (tmp_path / "failed").touch()

    def test_first(rank):
        if rank == 2:
            raise KeyError("train")
        time.sleep(1000)

    def test_hang(rank):
        if rank in (1, 3):
            time.sleep(1000)

    def test_crash(rank):
        if rank == 1:
            os.kill(os.getpid(), 11)
        time.sleep(1000)

    def test_skip():
        pytest.skip("no fabric")

    @pytest.mark.xfail
    def test_xfail(rank):
        assert rank > 2

    @pytest.mark.xfail
    def test_xfail_first(rank):
        assert rank
        time.sleep(1000)

    @pytest.mark.xfail(strict=True)
    def test_xpass():
        pass

    def test_teardown(request, rank):
        if rank == 1:
            request.addfinalizer(lambda: {}["gone"])

    @pytest.fixture
    def data(rank):
        return [0, 0, 0][rank]

    def test_setup(data):
        pass

    def test_pass_after(rank):
        assert rank < 4
"""

MISTAKES = """
    import os, pytest

    @pytest.mark.ranks
    def test_none(): pass

    @pytest.mark.ranks("4")
    def test_text(): pass

    @pytest.mark.ranks(2, back="gloo")
    def test_word(): pass

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("pid", [os.getpid()])
    def test_names(pid): pass
"""

FIXTURES = """
    import os, sys, time, warnings, pytest

    made = []

    @pytest.fixture(scope="module")
    def module():
        made.append(1)
        yield len(made)
        print("module down", os.environ.get("RANK"))

    @pytest.fixture(scope="session")
    def folder(tmp_path_factory):
        return tmp_path_factory.mktemp("data")

    def test_here(module, rank):
        assert (module, rank) == (1, 0) and "RANK" not in os.environ

    @pytest.mark.ranks(2)
    @pytest.mark.xdist_group("shared")
    @pytest.mark.parametrize("word", ["a", "b"])
    class TestModule:
        def test_shared(self, module, word, rank, folder, tmp_path, capsys):
            assert module == 1 and made == [1] and "torch" not in sys.modules
            assert folder.name == "data0" and folder.parent.name == f"ranks-2-{rank}"
            (tmp_path / str(rank)).touch()
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.01)
            print("in", tmp_path.name)
            assert capsys.readouterr().out == f"in {tmp_path.name}\\n"
            warnings.warn(f"of {word}")

    @pytest.mark.ranks(3)
    def test_three(module):
        assert module == 1 and os.environ["WORLD_SIZE"] == "3"

    def test_here_after(module):
        assert module == 1
"""

OTHER_MODULE = """
    import os, pytest
    from test_fixtures import made

    @pytest.fixture(scope="module", autouse=True)
    def down():
        yield
        if os.environ.get("RANK") == "1":
            raise RuntimeError("not closed")

    @pytest.mark.ranks(2)
    def test_other():
        assert made == [1]
"""

DEBUGGED = """
    import pytest

    @pytest.mark.ranks(2)
    def test_break(rank):
        value = 5 + rank
        if rank:
            breakpoint()
        print(value)

    @pytest.mark.ranks(2)
    def test_fail(rank):
        value = 7 + rank
        assert value == 0
"""

GROUPS = """
    import time, pytest

    @pytest.mark.ranks(2, backend="gloo")
    def test_sum(rank):
        import torch
        import torch.distributed as dist
        total = torch.tensor([rank + 1])
        dist.all_reduce(total)
        assert (dist.get_world_size(), dist.get_backend(), total.item()) == (2, "gloo", 3)

    @pytest.mark.ranks(2, backend="gloo")
    def test_before_collective(rank):
        import torch.distributed as dist
        assert rank == 0
        dist.barrier()

    @pytest.mark.ranks(2)
    def test_own(rank):
        import torch.distributed as dist
        dist.init_process_group("gloo")
        assert rank == 0
        dist.barrier()

    kept = []

    @pytest.mark.ranks(2)
    def test_kept(rank):
        import torch.distributed as dist
        dist.init_process_group("gloo")
        kept.append(dist.group.WORLD)
        dist.destroy_process_group()

    @pytest.mark.ranks(2, backend="gloo")
    def test_hang(rank):
        import torch.distributed as dist
        if rank:
            time.sleep(1000)
        dist.barrier()

    @pytest.mark.ranks(2, backend="gloo")
    def test_after():
        import torch.distributed as dist
        dist.barrier()
"""


class Pytest(TorchTest):
    needs = ("pytest", "xdist", "torch")

    def setUp(self):
        super().setUp()
        self.site, self.folder = install(self.tmp / "site"), self.tmp / "tests"
        self.folder.mkdir()

    def write(self, **files):
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(text))

    def start(self, *args, site=None, **options):
        running = Running([PYTHON, "-m", "pytest", f"--basetemp={self.tmp / 'base'}", *args], cwd=self.folder, timeout=100,
                          env={"PYTHONPATH": site or self.site}, **options)
        self.addCleanup(running.kill)
        return running

    def end(self, running):
        """Nothing may be left running, when wait() would end it."""
        running.process.wait(running.timeout)
        wait_until(lambda: not running.processes(), what=lambda: f"the end of {running.processes()}")
        return running.wait()

    def run_pytest(self, *args, **options):
        """What it has printed, and how each test has ended in pytest's words."""
        out = self.end(self.start("-rA", "--color=no", *args, **options)).out
        summary = out.partition("short test summary info")[2]
        return out, sorted(re.findall(r"^([A-Z]+) test_\w+\.py::(\S+)", summary, re.M))

    def sections(self, out, title):
        """Of a failure, by title; the failure itself is under None."""
        text = re.search(rf"^_+ {title} _+\n(.*?)(?=^(?:_{{4,}}|=+) )", out, re.M | re.S)
        self.assertTrue(text, f"no failure {title} in\n{out}")
        first, *more = re.split(r"^-+ (.+?) -+\n", text[1], flags=re.M)
        return {None: first, **dict(zip(more[::2], more[1::2]))}

    def test_ends(self):
        self.write(test_ends=ENDS)
        report = self.tmp / "report.xml"
        out, ends = self.run_pytest("--ranks-timeout=2", f"--junitxml={report}")
        self.assertEqual(ends, [
            ("ERROR", "test_setup"), ("ERROR", "test_teardown"), ("FAILED", "test_crash"), ("FAILED", "test_fail"),
            ("FAILED", "test_first"), ("FAILED", "test_hang"), ("FAILED", "test_xpass"), ("PASSED", "test_pass"),
            ("PASSED", "test_pass_after"), ("PASSED", "test_teardown"), ("XFAIL", "test_xfail"), ("XFAIL", "test_xfail_first")], out)
        self.assertRegex(out, r"SKIPPED \[1\] test_ends.py:\d+: no fabric")
        self.assertIn("FAILED test_ends.py::test_fail - rank 1: KeyError: 'train'\n", out)
        self.assertIn('failures="5"', report.read_text())

        found = self.sections(out, r"test_fail \(rank 1 of 4\)")
        self.assertRegex(found.pop(None), r"(?s)>  +raise KeyError.*\ntest_ends.py:11: KeyError\n$")
        self.assertEqual(found, {
            "Captured stdout call": "another\n", "Captured stdout call of rank 0": "rank 0\n",
            "Captured stdout call of ranks 2,3": "another\n",
            "ranks 2,3": '>           raise EOFError("in vain")\nE           EOFError: in vain\ntest_ends.py:15: EOFError\n'})
        self.assertEqual(self.sections(out, r"test_first \(rank 2 of 4\)")["ranks 0,1,3"],
                         "interrupted 1 s after rank 2 had failed\n")
        found = self.sections(out, "test_hang")
        self.assertEqual(found[None], "ranks 1,3 had not finished after 2 s (--ranks-timeout)\n")
        self.assertRegex(found["stacks"], r"\n  ranks 1,3: sleeps, .*\n    test_hang +test_ends.py:\d+\n    native: ")
        found = self.sections(out, "test_crash")
        self.assertRegex(found[None], r"^rank 1 on \S+ killed by SIGSEGV .*\n$")
        self.assertRegex(found["Captured stderr of ranks"], r'\[1\]   File ".*/test_ends.py", line \d+ in test_crash\n')
        self.assertNotIn("pluggy", found["Captured stderr of ranks"])
        self.assertIn("IndexError", self.sections(out, r"ERROR at setup of test_setup \(rank 3 of 4\)")[None])
        self.assertIn("KeyError", self.sections(out, r"ERROR at teardown of test_teardown \(rank 1 of 4\)")[None])

    def test_mistakes(self):
        self.write(test_mistakes=MISTAKES, test_import='import os, pytest\nif "RANK" in os.environ:\n    import nowhere\n'
                   "@pytest.mark.ranks(2)\ndef test_import(): pass\n")
        out, ends = self.run_pytest()
        self.assertEqual({end for end, _ in ends}, {"FAILED"}, out)
        for name, text in (("none", "ranks() missing 1 required positional argument: 'number'"),
                           ("text", "ranks() takes the number of ranks, as in @pytest.mark.ranks(4), and not '4'"),
                           ("word", "ranks() got an unexpected keyword argument 'back'"),
                           ("names.*", "names of tests may not differ between processes"),
                           ("import", "No module named 'nowhere'")):
            with self.subTest(name):
                self.assertIn(text, self.sections(out, f"test_{name}")[None])

    def test_fixtures(self):
        """Of all scopes, on each rank; tests without ranks keep their own, in the process of pytest."""
        self.write(test_fixtures=FIXTURES, test_other=OTHER_MODULE)
        for args in ([], ["-n2"], ["-n2", "--dist=loadgroup"]):
            with self.subTest(args):
                out, ends = self.run_pytest(*args, "-p", "no:cacheprovider")
                shared = [f"TestModule::test_shared[{word}]" for word in "ab"]
                self.assertEqual(ends, [("ERROR", "test_other"), *[("PASSED", name) for name in sorted(
                    [*shared, "test_here", "test_here_after", "test_other", "test_three"])]], out)
                self.assertIn("ERROR test_other.py::test_other - rank 1: RuntimeError: not closed\n", out)
                self.assertEqual(len(re.findall("UserWarning: of a", out)), 1, out)

    def test_selection(self):
        """-k and -x; --lf knows what has failed on ranks."""
        self.write(test_ends=ENDS)
        some = "first or pass or xfail_first"
        self.assertEqual(self.run_pytest("-k", some, "-x")[1], [("FAILED", "test_first"), ("PASSED", "test_pass")])
        self.assertEqual(self.run_pytest("--lf", "-k", some)[1], [("FAILED", "test_first")])
        out, _ = self.run_pytest("-s", "-k", "test_fail")
        self.assertIn("[0] rank 0\n", out)
        self.assertIn("[1-3] another\n", out)

    def test_debugger(self):
        self.write(test_debugged=DEBUGGED)
        answers = self.folder / "answers"
        answers.write_text("p value\nup\nc\n" + "p value\nc\n" * 2)
        with answers.open() as stdin:
            out, ends = self.run_pytest("--pdb", stdin=stdin)
        self.assertEqual(ends, [("FAILED", "test_fail"), ("PASSED", "test_break")], out)
        self.assertRegex(out, r"\n\[1\] \(Pdb\) \[1\] 6\n\[1\] \(Pdb\) \[1\] \*\*\* Oldest frame\n")
        for rank in (0, 1):
            self.assertRegex(out, rf"\[{rank}\] E +assert {rank + 7} == 0\n(.*\n)*\[{rank}\] \(Pdb\) \[{rank}\] {rank + 7}\n")
        answers.write_text("q\n")
        with answers.open() as stdin:
            running = self.start(stdin=stdin)
        self.assertIn("Exit: rank 1: Quitting debugger", self.end(running).out)

    def test_process_group(self):
        """Of torch, for a mark with a backend. A failure leaves no part of one to the next test."""
        self.write(test_groups=GROUPS)
        out, ends = self.run_pytest("--ranks-preload=torch", "--deselect=test_groups.py::test_hang")
        self.assertEqual(ends, [("FAILED", "test_before_collective"), ("FAILED", "test_own"), ("PASSED", "test_after"),
                                ("PASSED", "test_kept"), ("PASSED", "test_sum")], out)
        self.assertIn("rank 1 of 2", out)

    def test_hang_in_collective(self):
        self.write(test_groups=GROUPS)
        out, ends = self.run_pytest("--ranks-timeout=2", "--ranks-preload=torch", "-k", "hang or after")
        self.assertEqual(ends, [("FAILED", "test_hang"), ("PASSED", "test_after")], out)
        self.assertRegex(self.sections(out, "test_hang")["stacks"], r"rank 0 .*waits for other ranks")

    def test_interrupt(self):
        self.write(test_hang='import time, pytest\n@pytest.mark.ranks(2)\ndef test_hang(rank):\n'
                   '    open(f"{rank}.started", "w").close()\n    time.sleep(1000)\n')
        for number, code in ((signal.SIGINT, 2), (signal.SIGTERM, 143), (signal.SIGKILL, 137)):
            with self.subTest(number):
                running = self.start()
                wait_until(lambda: len(list(self.folder.glob("*.started"))) == 2, what=running.output)
                running.process.send_signal(number)
                self.assertEqual(self.end(running).code, code)
                for file in self.folder.glob("*.started"):
                    file.unlink()

    def test_modules(self):
        """The package costs those nothing who do not mark tests."""
        self.write(test_plain="import sys\ndef test_plain(): print(*sorted(sys.modules), sep='\\n')\n")
        found = [set(self.end(self.start("-s", "-q", site=site)).out.splitlines()) for site in (self.site, self.tmp)]
        self.assertEqual({name for name in found[0] ^ found[1] if " " not in name}, {"ddrun_pytest"})


if __name__ == "__main__":
    main()
