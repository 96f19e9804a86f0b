"""The example notebook in JupyterLab, by a real browser. DDRUN_PICTURE names a file for docs/notebook.png."""
import json
import os
import shutil
import socket

from harness import DDRUN, PYTHON, Running, TorchTest, VENV, main, script, wait_until
from documents import DOCS, ROOT

SLEEPING = ["%load_ext ddrun\n%ddrun start 2", "%%ddrun\nimport time\nprint('asleep')\ntime.sleep(1000)",
            "%%ddrun\nprint('usable', rank)"]


class JupyterLab(TorchTest):
    needs = ("jupyterlab", "playwright", "cloudpickle", "matplotlib")

    def test_notebook(self):
        chromium = shutil.which("chromium") or self.skipTest("chromium is not installed")
        notebook = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
        for cell in notebook["cells"]:  # what is shown has to come from this run
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        (self.tmp / "notebook.ipynb").write_text(json.dumps(notebook))
        notebook["cells"] = [{"cell_type": "code", "id": f"cell-{index}", "source": source, "metadata": {}, "outputs": [],
                              "execution_count": None} for index, source in enumerate(SLEEPING)]
        (self.tmp / "sleeping.ipynb").write_text(json.dumps(notebook))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        server = Running(
            [VENV / "bin/jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
             "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"], cwd=self.tmp,
            env={"PYTHONPATH": ROOT / "python", "DDRUN_PROGRAM": DDRUN, "HOME": self.tmp, "JUPYTER_PLATFORM_DIRS": "1"})
        self.addCleanup(server.kill)
        wait_until(lambda: "is running at" in server.output()[1], 60, server.output)
        picture = self.tmp / "picture.png"
        shown = self.assert_success(Running([PYTHON, script("jupyterlab_pages.py"), f"http://127.0.0.1:{port}", chromium, picture],
                                            cwd=self.tmp, env={"HOME": self.tmp}, timeout=280).wait()).out
        for text in ("equal lines come once\n", "ValueError: no data left", "[1, 3, 9, 27]", "[1] usable 1"):
            self.assertIn(text, shown)
        self.assertGreater(picture.stat().st_size, 10_000)
        if target := os.environ.get("DDRUN_PICTURE"):
            shutil.copy(picture, target)


if __name__ == "__main__":
    main()
