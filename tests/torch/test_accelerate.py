"""docs/coming-from-others.md names what `accelerate launch` makes of each key of its configuration: compared with accelerate."""
import json
import re

from harness import DDRUN, PYTHON, VENV, TorchTest, main, run, script
from documents import DOCS

# With accelerate launch or ddrun: the variables that it sets.
SHOW = """
import os
from accelerate import Accelerator
accelerator = Accelerator()
ours = sorted((name, value) for name, value in os.environ.items() if name.startswith(("ACCELERATE_", "FSDP_")))
accelerator.print(accelerator.distributed_type, accelerator.mixed_precision, accelerator.num_processes)
accelerator.print(ours)
"""
# Options of accelerate launch that are no keys of its configuration, and of the same name in ddrun.
SAME = {"tee", "log_dir", "role", "rdzv_conf", "max_restarts", "monitor_interval"}
NO_KEYS = {"quiet", "cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm", "vm", "env",
           "aws_access_key_id", "aws_secret_access_key", *SAME}


class Accelerate(TorchTest):
    needs = ("torch", "accelerate")

    def setUp(self):
        super().setUp()
        self.env = {"HF_HOME": self.tmp}
        self.page = (DOCS / "coming-from-others.md").read_text(encoding="utf-8")

    def rows(self):
        """{key, or pattern with *: the text beside it}; keys that contain others name groups."""
        [table] = re.findall(r"\n\| Key \|.*\n\|---\|---\|\n((?:\|.*\n)+)", self.page)
        rows = {}
        for line in table.splitlines():
            keys, text = line.strip("| ").split(" | ")
            for key in re.findall(r"`([a-z0-9_*]+)`", keys):
                rows[key] = rows.get(key, "") + text
        return rows

    def test_keys(self):
        result = self.assert_success(run([PYTHON, script("accelerate_variables.py")], env=self.env, timeout=120))
        found, rows = json.loads(result.out.splitlines()[-1]), self.rows()
        made = {name for names in found["kinds"].values() for name in names}

        def text_of(key):
            pattern = max((row for row in rows if re.fullmatch(row.replace("*", ".+"), key)), key=lambda row: len(row.rstrip("*")), default=None)
            self.assertIsNotNone(pattern, f"the page does not name {key}")
            rest = key[len(pattern) - 1:].upper() if pattern.endswith("*") else "*"
            return rows[pattern].replace("*", rest)

        for key in found["keys"]:
            text_of(key)
        sources = "".join(path.read_text(encoding="utf-8")
                          for path in VENV.glob("lib/python3*/site-packages/accelerate/utils/*.py"))
        for key, names in found["changes"].items():
            if key in NO_KEYS:
                continue
            said = re.findall(r"`([A-Z][A-Z0-9_]+)(?:=\w+)?`", text_of(key))
            with self.subTest(key):
                self.assertTrue({*said} & {*names} or not names or "`--" in text_of(key), f"{said}, not {names}")
                for name in said:
                    self.assertTrue(name in names or name in made or f'"{name}"' in sources, f"accelerate does not know {name}")
        for name in re.findall(r"`([A-Z][A-Z0-9_]+)=true`", self.page):
            self.assertIn(name, made)

    def test_options(self):
        """Those of ddrun in the table exist."""
        known = run([DDRUN, "--help"]).out
        for text in self.rows().values():
            for option in re.findall(r"`(--?[a-z-]+)`", text):
                self.assertRegex(known, rf"(?<![\w-]){option}(?![\w-])")
        for name in SAME:
            self.assertIn("--" + name.replace("_", "-"), known)

    def test_as_accelerate_launch(self):
        """The page's file, and its command."""
        (self.tmp / "config.yaml").write_text(re.search(r"```yaml config.yaml\n(.*?)```", self.page, re.S)[1])
        (self.tmp / "show.py").write_text(SHOW)
        launch = [PYTHON, "-m", "accelerate.commands.launch", "--config_file", self.tmp / "config.yaml", self.tmp / "show.py"]
        theirs = self.assert_success(run(launch, env=self.env, cwd=self.tmp)).out.splitlines()
        words = re.search(r"\nddrun (-n 2 --env[^`]*?) train.py", self.page, re.S)[1].replace("\\\n", "").split()
        ours = self.assert_success(run([DDRUN, "--label=none", *words, self.tmp / "show.py"], env=self.env, cwd=self.tmp)).out.splitlines()
        self.assertEqual(ours[0], theirs[0])
        self.assertTrue({*eval(ours[1])} <= {*eval(theirs[1])}, f"{ours}\n{theirs}")


if __name__ == "__main__":
    main()
