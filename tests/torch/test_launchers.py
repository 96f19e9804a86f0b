"""The functions of accelerate and torch that ddrun has too, the options that are not for calls, and where the program is found."""
import contextlib
import io
import os
import shutil
import sys
from unittest import mock

from harness import DDRUN, PYTHON, run
from documents import ROOT, free_port
from test_group import PackageTest, run_with_package


class BadLuck(Exception):
    pass


def rank():
    return int(os.environ["RANK"])


def fail_on(failing, error):
    if rank() == failing:
        raise error


def say(text):
    print(text)
    print("to", "stderr", file=sys.stderr)


class Launchers(PackageTest):
    needs = ("cloudpickle", "torch")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        global ddrun, _launchers
        import ddrun
        from ddrun import _launchers

    def options(self, **fields):
        """What a field adds to the command line, with torch's LaunchConfig and, if it is the same there, ddrun's."""
        from torch.distributed.launcher.api import LaunchConfig

        def words(made, **given):
            return set(_launchers.config_options(made(1, 1, 2, logs_specs=self.specs(), **given))) - \
                set(_launchers.config_options(made(1, 1, 2, logs_specs=self.specs())))
        found = words(LaunchConfig, **fields)
        self.assertEqual(words(ddrun.LaunchConfig, **fields), found)
        return found

    def specs(self, **fields):
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

        return DefaultLogsSpecs(**{"log_dir": str(self.tmp / "logs"), **fields})

    def notebook_options(self, **arguments):
        with mock.patch("ddrun._launchers.launch", lambda call, options: {0: options}):
            return ddrun.notebook_launcher(rank, **arguments)[0]

    def test_one_machine(self):
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(ddrun.notebook_launcher(lambda add: rank() + add, (5,), num_processes=2), [5, 6])
            self.assertEqual(ddrun.elastic_launch(ddrun.LaunchConfig(1, 1, 2), lambda add: rank() + add)(5), {0: 5, 1: 6})
            with self.assertRaises(BadLuck):
                ddrun.elastic_launch(ddrun.LaunchConfig(1, 1, 2, max_restarts=0), fail_on)(0, BadLuck())
        with self.assertRaisesRegex(TypeError, "function"):
            ddrun.elastic_launch(ddrun.LaunchConfig(1, 1, 2), "train.py")

    def test_two_machines(self):
        text = """
import ddrun, sys, torch.distributed.launcher.api
def function():
    import os
    return os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ.get("ACCELERATE_MIXED_PRECISION")
node, port = sys.argv[1:]
print(ddrun.notebook_launcher(function, num_processes=2, num_nodes=2, node_rank=int(node), master_addr="127.0.0.1", use_port=port))
config = torch.distributed.launcher.api.LaunchConfig(1, 1, 1)
print(ddrun.elastic_launch(config, function)())
"""
        port = free_port()
        machines = [self.start(text, node, port) for node in range(2)]
        for node, machine in enumerate(machines):
            result = self.assert_success(machine.wait())
            ranks = [(f"{rank}", "4", "no") for rank in (2 * node, 2 * node + 1)]
            self.assertEqual(result.out, f"{ranks}\n{ {0: ('0', '1', None)} }\n")

    def test_same_fields(self):
        import dataclasses
        from torch.distributed.launcher.api import LaunchConfig

        names = [[field.name for field in dataclasses.fields(config)] for config in (LaunchConfig, ddrun.LaunchConfig)]
        self.assertEqual(names[0], names[1][:len(names[0])])

    def test_each_field(self):
        from torch.numa.binding import AffinityMode, NumaOptions

        for field, value, options in (
                ("run_id", "job", {"--rdzv-id=job"}), ("role", "trainer", {"--role=trainer"}),
                ("local_addr", "127.0.0.1", {"--local-addr=127.0.0.1"}), ("max_restarts", 5, {"--max-restarts=5"}),
                ("signals_to_handle", "SIGUSR1", {"--signals-to-handle=SIGUSR1"}), ("shutdown_timeout", 0, {"--shutdown-timeout=0"}),
                ("virtual_local_rank", True, {"--virtual-local-rank"}), ("event_log_handler", "console", {"--event-log-handler=console"}),
                ("numa_options", NumaOptions(AffinityMode.NODE), {"--numa-binding=node"}), ("rdzv_timeout", 7, {"--rdzv-conf=timeout=7"}),
                ("duplicate_stdout_filters", ["a,b", "c"], {"--duplicate-stdout-filters=a,,b,c"}),
                ("duplicate_stderr_filters", ["d"], {"--duplicate-stderr-filters=d"}),
                ("monitor_interval", 5, set()), ("start_method", "fork", set()), ("metrics_cfg", {"a": "b"}, set())):
            with self.subTest(field):
                self.assertEqual(self.options(**{field: value}), options)
        self.assertEqual(self.options(rdzv_endpoint="localhost:0", rdzv_backend="c10d"),
                         {"--rdzv-endpoint=localhost:0", "--rdzv-backend=c10d"})

    def test_what_cannot_be_done_is_refused_by_name(self):
        import dataclasses
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig

        class Own(DefaultLogsSpecs):
            def reify(self, envs):
                return super().reify(envs)

        @dataclasses.dataclass
        class Newer(LaunchConfig):
            new_field: int = 0

        with self.assertRaisesRegex(ValueError, r"LaunchConfig.log_line_prefix_template .*'\[\$\{rank\}\]:'"):
            self.options(log_line_prefix_template="[${rank}]:")
        with self.assertRaisesRegex(ValueError, "LaunchConfig.logs_specs .*: a Own"):
            _launchers.config_options(LaunchConfig(1, 1, 1, logs_specs=Own(str(self.tmp / "logs"))))
        with self.assertRaisesRegex(ValueError, "LaunchConfig.new_field .*: 1"):
            _launchers.config_options(Newer(1, 1, 1, logs_specs=self.specs(), new_field=1))
        _launchers.config_options(Newer(1, 1, 1, logs_specs=self.specs()))
        with self.assertRaisesRegex(ValueError, "health_check_server"):
            ddrun.elastic_launch(ddrun.LaunchConfig(1, 1, 2), rank, object())

    def test_logs(self):
        """In the folders and files of torch. Older versions have these fields in LaunchConfig itself."""
        from torch.distributed.elastic.multiprocessing import Std
        from torch.distributed.launcher.api import LaunchConfig

        specs = self.specs(redirects={0: Std.ALL}, tee={1: Std.OUT}, local_ranks_filter={1, 0})
        wanted = {f"--log-dir={self.tmp}/logs", "--redirects=0:3", "--tee=1:1", "--local-ranks-filter=0,1"}
        older = {"log_dir": str(self.tmp / "logs"), "redirects": {0: 3}, "tee": {1: 1}, "local_ranks_filter": {0, 1}}
        for config in (LaunchConfig(1, 1, 2, logs_specs=specs), ddrun.LaunchConfig(1, 1, 2, **older)):
            self.assertLessEqual(wanted, set(_launchers.config_options(config)))
        config = LaunchConfig(1, 1, 2, logs_specs=specs, run_id="job", duplicate_stdout_filters=["ell"])
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            ddrun.elastic_launch(config, say)("hello")
        self.assertEqual(out.getvalue(), "[1] hello\n")
        [folder] = (self.tmp / "logs").glob("job_*/attempt_0")
        files = {str(file.relative_to(folder)): file.read_text().split("\n")[0] for file in folder.glob("**/*.log")}
        self.assertEqual({name: text for name, text in files.items() if not name.startswith("filtered")},
                         {"0/stdout.log": "hello", "0/stderr.log": "to stderr", "1/stdout.log": "hello"})
        self.assertIn("hello", (folder / "filtered_stdout.log").read_text())

    def test_arguments_of_a_notebook(self):
        self.assertLessEqual({"--rdzv-id=job", "--max-restarts=2", "--env=ACCELERATE_MIXED_PRECISION=bf16", "--rdzv-conf=timeout=5",
                              "--nproc-per-node=2"},
                             set(self.notebook_options(num_processes=2, rdzv_id="job", max_restarts=2, mixed_precision="BF16",
                                                       rdzv_conf={"timeout": 5})))
        several = {"num_nodes": 2, "node_rank": 1, "master_addr": "node0", "use_port": "5"}
        self.assertLessEqual({"--rdzv-backend=static", "--master-addr=node0", "--master-port=5", "--node-rank=1"},
                             set(self.notebook_options(**several)))
        self.assertLessEqual({"--rdzv-backend=c10d", "--rdzv-endpoint=node0:5", "--node-rank=1"},
                             set(self.notebook_options(**several, rdzv_backend="c10d")))
        self.assertIn("--rdzv-endpoint=node1:6", self.notebook_options(**several, rdzv_endpoint="node1:6"))
        for wrong in ({"mixed_precision": "fp7"}, {"node_rank": 1}, {"log_line_prefix_template": "x"}):
            with self.assertRaisesRegex(ValueError, next(iter(wrong))):
                self.notebook_options(**wrong)


class Options(PackageTest):
    def test_which_are_not_for_calls(self):
        from ddrun._options import check_options

        for words in (["--log-line-prefix-template=x"], ["--log_line-prefix_template", "x"], ["--label=none"], ["--events=/dev/null"],
                      ["--timestamps", "--events", "x"], ["--stdin=all"], ["--end-with-parent=0"], ["--dry-run"], ["--dry_run"], ["-m"],
                      ["--module"], ["-vm"], ["-qh"], ["-V"], ["-v"], ["--no_python"], ["--run-path"], ["--print-completion=bash"]):
            with self.subTest(words), self.assertRaisesRegex(ValueError, "not for calls of functions: "):
                check_options(words)
        for words in (["train.py"], ["--"], ["--tee=3", "train.py"]):
            with self.subTest(words), self.assertRaisesRegex(ValueError, "options end before"):
                check_options(words)
        check_options(["-n", "2", "-np", "2", "-n2", "--env", "m=1", "-x", "V", "-xmV=1", "-t3", "-q", "--hosts=a,b", "--tee", "3",
                       "--timestamps", "--log-dir=-m", "--max-restarts", 5])

    def test_variables_and_files_do_not_count(self):
        from ddrun._options import SWITCHED_OFF

        (self.tmp / "file.toml").write_text("label='host'\ndry-run=true\nmodule=true\nno-python=true\nrun-path=true\nevents='x'\n")
        words = ["-q", "--log-line-prefix-template=${rank} ", "--events=/dev/null", *SWITCHED_OFF, "-n2", "echo", "a"]
        for variables in ({"DDRUN_CONFIG": self.tmp / "file.toml"}, {"DDRUN_LABEL": "host", "DDRUN_DRY_RUN": "1", "PET_MODULE": "1"}):
            result = self.assert_success(run([DDRUN, *words], env=variables))
            self.assertEqual((sorted(result.out.split("\n")), result.err), (["", "0 a", "1 a"], ""))


class FindProgram(PackageTest):
    """A copy of the package in a folder, and programs in others."""

    def find(self, folder, *programs, **patches):
        package = self.tmp / folder / "ddrun"
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "python/ddrun/__init__.py", package)
        for program in programs:
            path = self.tmp / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        code = "import os, sys; sys.path.insert(0, sys.argv[1]); import ddrun; print(ddrun.find_ddrun())"
        return run([PYTHON, "-c", code, self.tmp / folder], cwd=self.tmp, env={"HOME": self.tmp, "DDRUN_PROGRAM": "", **patches})

    def assert_found(self, result, program):
        self.assertEqual(self.assert_success(result).out, f"{self.tmp / program}\n")

    def test_beside_the_package(self):
        """pip install --target, --prefix, and what only looks like a prefix."""
        self.assert_found(self.find("a/b/site", "a/b/site/bin/ddrun", "bin/ddrun"), "a/b/site/bin/ddrun")
        result = self.find("c/d/site", "bin/ddrun", "c/bin/ddrun", "c/d/bin/ddrun")
        self.assertNotIn(str(self.tmp), result.out)
        for folder in ("lib/python3.11/site-packages", "local/lib64/python3/dist-packages"):
            with self.subTest(folder):
                self.assert_found(self.find(f"p/{folder}", f"p/{folder}/../../../bin/ddrun"),
                                  "p/bin/ddrun" if folder.startswith("lib/") else "p/local/bin/ddrun")

    def test_what_other_users_may_change(self):
        folder = "p/lib/python3.11/site-packages"
        for changed in ("p/bin", "p/bin/ddrun"):
            with self.subTest(changed):
                self.find(folder, "p/bin/ddrun")
                (self.tmp / changed).chmod(0o777)
                result = self.find(folder)
                self.assertNotIn(str(self.tmp), result.out)
                self.assertTrue(result.out or f"{self.tmp}/p/bin: there is one that other users may have put there" in result.err)
                (self.tmp / changed).chmod(0o755)
        self.assert_found(self.find(folder), "p/bin/ddrun")
        if os.geteuid() == 0:
            for changed in ("p/bin", "p/bin/ddrun"):
                os.chown(self.tmp / changed, 12345, -1)
                self.assertNotIn(str(self.tmp), self.find(folder).out)
                os.chown(self.tmp / changed, 0, -1)

    def test_relative_folders(self):
        result = self.find("a/site", "base/bin/ddrun", PYTHONUSERBASE="base")
        self.assertNotIn("base", result.out)


if __name__ == "__main__":
    run_with_package()
