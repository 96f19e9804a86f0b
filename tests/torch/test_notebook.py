"""The magics in a kernel of Jupyter, and docs/notebook.ipynb."""
import asyncio
import contextlib
import faulthandler
import itertools
import os
import pathlib
import re
import signal
import socket
import sys
import uuid

from harness import DDRUN, PYTHON, TorchTest, VENV, environment, main, processes_of, running, wait_until
from documents import DOCS, ROOT

PACKAGE = {"PYTHONPATH": ROOT / "python", "DDRUN_PROGRAM": DDRUN}


def has_package(name):
    return bool(list(VENV.glob(f"lib/python3*/site-packages/{name}")))


def text_of(outputs):
    """What a cell shows as text, as a reader sees it."""
    text = ""
    for output in outputs:
        if output.output_type == "stream":
            text += output.text
        elif output.output_type == "error":
            text += re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
        else:
            text += output.data["text/plain"] + "\n"
    return text


def kinds_of(outputs):
    kinds = [(output.output_type, output.get("name"), output.get("ename"), sorted(output.get("data", ()))) for output in outputs]
    return [kind for kind, _ in itertools.groupby(kinds)]


class KernelTest(TorchTest):
    needs = ("cloudpickle", "ipykernel", "nbclient", "matplotlib")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import nbclient
        import nbformat.v4

        class Client(nbclient.NotebookClient):
            """seen(text) is called with each text that is shown."""

            def process_message(self, message, cell, index):
                if message["msg_type"] == "stream":
                    self.seen(message["content"]["text"])
                return super().process_message(message, cell, index)

        cls.format, cls.client_class = nbformat, Client

    @classmethod
    def start(cls, notebook=None):
        """A kernel. What it starts is found by its mark, and has to be gone at the end."""
        mark = uuid.uuid4().hex
        cls.addClassCleanup(lambda: wait_until(lambda: not processes_of(mark), 60, lambda: processes_of(mark)))
        client = cls.client_class(notebook or cls.format.v4.new_notebook(), timeout=120, kernel_name="python3")
        client.seen, client.mark = lambda text: None, mark
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        stack.enter_context(client.setup_kernel(env={**os.environ, running.MARK: mark}))
        client.ranks = lambda: [pid for pid, command in processes_of(mark).items() if re.search(r"python\S* -u \S+_rank\.py", command)]
        return client

    def run_cell(self, client, source, seen=lambda text: None):
        cell = self.format.v4.new_code_cell(source)
        client.nb.cells.append(cell)
        client.allow_errors, client.seen = True, seen
        client.execute_cell(cell, len(client.nb.cells) - 1)
        return cell.outputs


class Magics(KernelTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = cls.start()

    def setUp(self):
        super().setUp()
        self.pids = r"^ranks 0-2 on \S+: pids \d+, \d+, \d+\n"
        self.assertRegex(self.shown("%reload_ext ddrun\n%ddrun start 3"), self.pids + "$")

    def outputs(self, source, **options):
        return self.run_cell(self.client, source, **options)

    def shown(self, source, **options):
        return text_of(self.outputs(source, **options))

    def test_cells(self):
        self.assertEqual(self.shown("%%ddrun\nx = rank * 10"), "")
        self.assertEqual(self.shown("%%ddrun\nx + world_size"), "[0] 3\n[1] 13\n[2] 23\n")
        self.assertEqual(self.shown("%%ddrun --rank 0,2\nx"), "[0] 0\n[2] 20\n")
        self.assertEqual(self.shown("%%ddrun\nimport asyncio\nawait asyncio.sleep(0)\nx;"), "")
        self.assertEqual(self.shown("%%ddrun --rank 1\n!echo shell $RANK"), "[1] shell 1\n")
        self.assertRegex(self.shown("%%ddrun --rank=1\n%timeit -n1 -r1 x"), r"^\[1\] .* per loop")
        self.assertIn("there is no rank 5 here; there are 0-2", self.shown("%%ddrun --rank 5\nx"))
        for wrong in ("%%ddrun --foo\nx", "%ddrun bla"):
            self.assertIn("%ddrun push NAME", self.shown(wrong))

    def test_output_is_live_and_folded(self):
        """The cell ends after its first lines have been seen."""
        proceed, seen = self.tmp / "proceed", []

        def look(text):
            seen.append(text)
            if "".join(seen).count("first") and "[2] of 2" in "".join(seen):
                proceed.touch()
        shown = self.shown(f"""%%ddrun
import os, time
print("first"), print("of", rank)
while not os.path.exists({str(proceed)!r}): time.sleep(0.01)
print("last")""", seen=look)
        self.assertEqual(sorted(re.sub(r"\[[\d,-]+\] (first|last)", r"\1", shown).split("\n"))[1:4], [f"[{rank}] of {rank}" for rank in range(3)])

    def test_bars(self):
        """A row for each rank, in one display; a bar ends as a line."""
        rows, (proceed, done) = [], (self.tmp / name for name in ("proceed", "done"))

        def look(message):
            rows.append(message["content"].get("data", {}).get("text/plain"))
            for text, path in (("[0] 0: 50%\n[1] 1: 50%\n[2] 2: 50%", proceed), ("[0] 0: 50%\n[2] 2: 50%", done)):
                # Without rank 1 it looks so at first too, if that is late.
                if rows[-1] == text and (path == proceed or proceed.exists()):
                    path.touch()
        shown = self.debug(f"""%%ddrun
import os, sys, time
print('\\r{{0}}: 50%\\r{{0}}: 60%'.format(rank), end='', file=sys.stderr, flush=True)
while not os.path.exists({str(proceed)!r} if rank == 1 else {str(done)!r}): time.sleep(0.01)
print('\\r{{}}: 100%'.format(rank), file=sys.stderr)""", seen=look)[0]
        self.assertEqual(sorted(shown.split("\n"))[1:], [f"[{rank}] {rank}: 100%" for rank in range(3)])
        self.assertEqual(rows[-1], "")

    def test_what_is_not_text(self):
        outputs = self.outputs("%%ddrun\nimport matplotlib.pyplot as plt\nplt.plot([rank, 1])\nprint('drawn');")
        pictures = [output for output in outputs if output.output_type == "display_data"]
        self.assertEqual([sorted(picture.data) for picture in pictures], [["image/png", "text/plain"]])
        outputs = self.outputs("%%ddrun --rank 1,2\nfrom IPython.display import HTML\nHTML(f'<b>{rank}</b>')")
        self.assertEqual([output.data["text/html"] for output in outputs], ["<b>1</b>"])

    def test_displays_are_updated(self):
        """In place, from the first rank of the cell, by a thread too; texts of other ranks are not repeated."""
        outputs = self.outputs("""%%ddrun
from IPython.display import HTML, display, update_display
import threading
handle = display(HTML('0'), display_id=True)
thread = threading.Thread(target=lambda: [handle.update(HTML(f'{rank}:{number}')) for number in range(1, 5)])
thread.start(), thread.join()
display('a', display_id='of a cell')
update_display(rank, display_id='of a cell');""")
        self.assertEqual([output.output_type for output in outputs], ["display_data"] * 2)
        self.assertEqual([outputs[0].data["text/html"], outputs[1].data["text/plain"]], ["0:4", "0"])

    def test_clear_output(self):
        """It clears what was printed before it, by any rank, and nothing that came later."""
        shown = self.shown("""%%ddrun --rank 1
from IPython.display import clear_output
for number in range(20):
    clear_output(wait=number % 2)
    print('number', number)""")
        self.assertEqual(shown, "[1] number 19\n")
        shown = self.shown("%%ddrun --rank 0,2\nfrom IPython.display import clear_output\nprint('x')\nif rank == 2: clear_output()")
        # On a busy machine the second line may come too late to be folded.
        self.assertIn(shown, ("[0,2] x\n", "[0] x\n[2] x\n", "[2] x\n[0] x\n"))

    def test_what_cannot_be_displayed(self):
        """Is one line, or the traceback of __repr__, and ends nothing."""
        shown = self.shown("""%%ddrun --rank 0
import sys, types
from IPython.display import display
sys.modules['of_ranks'] = types.ModuleType('of_ranks')
Local = type('Local', (), {'__module__': 'of_ranks'})
sys.modules['of_ranks'].Local = Local
display({'text/html': Local()}, raw=True)
print('goes on')""")
        self.assertEqual(sorted(shown.split("\n")), ["", "[0] goes on", "ddrun: a display of text/html cannot be shown: "
                                                     "ModuleNotFoundError: No module named 'of_ranks'"])
        shown = self.shown("%%ddrun --rank 0\nclass Bad:\n    def __repr__(self): raise ValueError('no text')\ndisplay(Bad())\nBad()")
        self.assertEqual(shown.count("[0] ValueError: no text\n"), 2)
        self.assertNotIn("KeyError", shown)
        shown = self.shown("%%ddrun --rank 0\ndisplay({'application/vnd.jupyter.widget-view+json': {}, 'text/plain': 'bar'}, raw=True)")
        self.assertEqual(shown, "[0] bar\n")

    def test_failures(self):
        self.outputs("%%ddrun\nimport time\nx = rank\ndef fail():\n    raise KeyError('train')")
        outputs = self.outputs("%%ddrun\nif rank == 1: fail()\ntime.sleep(1000)")
        self.assertEqual([(output.output_type, output.ename) for output in outputs], [("error", "KeyError")])
        shown = text_of(outputs)
        self.assertRegex(shown, r"(?s)if rank == 1: fail\(\).*in fail\(\).*raise KeyError\('train'\).*KeyError: 'train'.*rank 1 of 3 on \S+, the first")
        self.assertNotRegex(shown, r"_worker\.py|_call\.py|_magics\.py|ipykernel")
        shown = text_of(self.outputs("def fail_here():\n    raise KeyError('here')\n%ddrun status\nDdrun = get_ipython()"
                                     ".magics_manager.registry['DdrunMagics']\nDdrun.group.run(fail_here)"))
        self.assertRegex(shown, r'(?s)File "Cell In\[(\d+)\]", line 2, in fail_here\n +raise KeyError.*Cell In\[\1\], line 5')
        here, there = (re.search(r"Cell In\[(\d+)\], line 1", text_of(self.outputs(cell)))[1]
                       for cell in ("1 / 0", "%%ddrun\n1 / 0"))
        self.assertEqual(int(there), int(here) + 1)
        shown = self.shown("%%ddrun\nx = = 3")
        self.assertRegex(shown, r"x = = 3\n +\^\nSyntaxError: invalid syntax")
        self.assertNotIn("_call.py", shown)
        self.assertEqual(self.shown("%%ddrun\nx"), "[0] 0\n[1] 1\n[2] 2\n")
        self.assertIn("%ddrun stop ends the ranks", self.shown("%%ddrun\nexit()"))
        # An interrupt may leave this behind.
        self.assertEqual(self.shown("%%ddrun\ncoroutine = get_ipython().run_cell_async('1')\ndel coroutine"), "")

    def debug(self, source, *lines, seen=lambda message: None):
        """What is shown, and the prompts of the kernel, which are answered with lines."""
        from jupyter_core.utils import run_sync

        left, prompts, shown, client = list(lines), [], [], self.client.kc

        def answer(message):
            prompts.append(message["content"]["prompt"])
            client.input(left.pop(0)) if left else run_sync(self.client.km.interrupt_kernel)()

        def see(message):
            content = message["content"]
            if content.get("transient"):
                seen(message)
            shown.append(content.get("text") or "\n".join(content.get("traceback", ())))
        run_sync(client.execute_interactive)(source, allow_stdin=True, timeout=60, stdin_hook=answer, output_hook=see)
        return re.sub(r"\x1b\[[\d;]*m", "", "".join(shown)), prompts

    def test_breakpoints(self):
        shown, prompts = self.debug("%%ddrun --rank 1\nx = rank\nbreakpoint()\nx + 1", "p x", "x = 5", "c")
        self.assertEqual(prompts, ["[1] (Pdb) "] * 3)
        self.assertRegex(shown, r"(?s)^\[1\] (?:--Return--\n\[1\] )?> .*\[1\] 1\n\[1\] 6\n$")
        shown, prompts = self.debug("def stop_here():\n    value = 7\n    breakpoint()\n    return value\n%ddrun status\n"
                                    "get_ipython().magics_manager.registry['DdrunMagics'].group.run(stop_here, ranks=[1])", "l", "c")
        self.assertRegex(shown, r"(?s)> Cell In\[\d+\]\(4\)stop_here\(\).*-> return value.*\[1\]   2  \t    value = 7\n")
        shown, prompts = self.debug("%%ddrun\nbreakpoint()\nx = 3")
        self.assertEqual(len(prompts), 1)
        self.assertIn("KeyboardInterrupt", shown)
        self.assertEqual(self.shown("%%ddrun --rank 2\nrank"), "[2] 2\n")

    def test_debug(self):
        """The traceback is kept until the next call begins, and nothing of it after that."""
        self.outputs("%%ddrun\nimport weakref\nclass Held: pass\ndef fail(divisor):\n    global held\n    local = Held()\n"
                     "    held = weakref.ref(local)\n    return 1 / divisor")
        self.outputs("%%ddrun --rank 0,2\nfail(rank)")
        for _ in range(2):
            shown, prompts = self.debug("%%ddrun --rank 0\n%debug", "p divisor", "u", "p rank", "q")
            self.assertEqual(prompts, ["[0] (Pdb) "] * 4)
            self.assertRegex(shown, r"(?s)^\[0\] > .*\(7\)fail\(\)\n\[0\] -> return 1 / divisor\n\[0\] 0\n\[0\] > .*\(1\)<module>\(\)\n"
                                    r"\[0\] -> fail\(rank\)\n\[0\] 0\n$")
        self.assertEqual(self.shown("%%ddrun\nrank, 'held' in globals() and held()"), "[0] (0, None)\n[1] (1, False)\n[2] (2, None)\n")
        self.assertIn("the last cell of this rank raised no exception", self.shown("%%ddrun\n%debug"))

    def test_interrupt(self):
        def interrupt(text):
            if "asleep" in text:
                asyncio.ensure_future(self.client.km.interrupt_kernel())
        self.outputs("%%ddrun\nimport time\nx = rank")
        outputs = self.outputs("%%ddrun\nprint('asleep')\ntime.sleep(1000)", seen=interrupt)
        self.assertEqual(outputs[-1].ename, "KeyboardInterrupt")
        self.assertEqual(self.shown("%%ddrun\nx"), "[0] 0\n[1] 1\n[2] 2\n")

    def test_status(self):
        self.assertRegex(self.shown("%ddrun status"), self.pids + r"(?:\[[\d,-]+\] \d+ MiB\n){1,3}$")
        self.assertRegex(self.shown("%ddrun stacks"), r"^where the ranks of .*:\n  ranks? [\d,-]+.*: waits for another thread")

    def test_names_of_cells(self):
        """As the notebook's; two cells of one number have their own lines."""
        magic = "get_ipython().run_cell_magic('ddrun', '--rank 1', "
        self.shown(f"{magic}'def first():\\n    1 / 0')\n{magic}'# another\\n\\ndef second(): 2 / 0')")
        self.assertRegex(self.shown("%%ddrun --rank 1\nfirst.__code__.co_filename"), r"^\[1\] 'Cell In\[\d+\]'$")
        for name, line in (("first", "    1 / 0"), ("second", "def second(): 2 / 0")):
            self.assertIn(line, self.shown(f"%%ddrun --rank 1\n{name}()"))

    def test_variables(self):
        self.assertEqual(self.shown("a, b = 5, [1]\n%ddrun push a b"), "")
        self.assertEqual(self.shown("values = %ddrun pull a * rank\nvalues, b"), "([0, 5, 10], [1])\n")
        self.assertIn("has no variable nothing", self.shown("%ddrun push a nothing"))

    def test_ends(self):
        ranks = self.client.ranks()
        self.assertEqual(len(ranks), 3, processes_of(self.client.mark))
        self.assertEqual(self.shown("%ddrun restart"), "")
        self.assertFalse(set(ranks) & set(self.client.ranks()))
        self.assertIn("NameError: name 'x' is not defined", self.shown("%%ddrun\nx"))
        shown = self.shown("%%ddrun\nimport os, time\nif rank == 1: os.kill(os.getpid(), 11)\ntime.sleep(1000)")
        self.assertRegex(shown, r'File "Cell In\[\d+\]", line 2 in <module>')
        self.assertNotRegex(shown, r"_worker\.py|interactiveshell\.py")
        self.assertEqual(self.shown("%%ddrun\nrank"), "[0] 0\n[1] 1\n[2] 2\n")
        shown = self.shown("%%ddrun\nimport os, time\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(1000)")
        self.assertRegex(shown, r"rank 1 .*killed by SIGKILL(?s:.*)all ranks start anew; their variables are gone")
        self.assertEqual(self.shown("%%ddrun\nrank"), "[0] 0\n[1] 1\n[2] 2\n")
        self.assertEqual(self.shown("%ddrun stop"), "")
        self.assertEqual(len(processes_of(self.client.mark)), 1)  # the kernel
        self.assertIn("%ddrun start 4", self.shown("%%ddrun\nx"))


class Kernels(KernelTest):
    def test_end_of_the_kernel(self):
        """At its restart, and when it is killed in the middle of a cell."""
        client = self.start()
        self.run_cell(client, "%load_ext ddrun\n%ddrun start 2")
        ranks = client.ranks()
        self.assertEqual(len(ranks), 2)
        from jupyter_core.utils import run_sync

        run_sync(client.km.restart_kernel)(now=True)
        run_sync(client.kc.wait_for_ready)(timeout=120)
        wait_until(lambda: not client.ranks(), 60, client.ranks)
        self.run_cell(client, "%load_ext ddrun\n%ddrun start 2")
        self.assertEqual(len(client.ranks()), 2)

        def kill(text):
            os.kill(client.km.provisioner.pid, signal.SIGKILL)
        with self.assertRaisesRegex(Exception, "Kernel died"):
            self.run_cell(client, "%%ddrun\nimport time\nprint('asleep')\ntime.sleep(1000)", seen=kill)
        wait_until(lambda: not processes_of(client.mark), 60, lambda: processes_of(client.mark))


class ProcessGroups(KernelTest):
    """Of torch, after a cell that was interrupted in a collective. DDRUN_TEST_INTERRUPTS: how many."""
    needs = (*KernelTest.needs, "torch")

    BEGIN = "%%ddrun\nimport time, torch, torch.distributed as dist\nif not dist.is_initialized(): dist.init_process_group('gloo')"
    REDUCE = "%%ddrun\ntotal = torch.ones(1)\ndist.all_reduce(total)\nint(total), globals().get('kept')"

    def interrupt(self, before=""):
        """What is shown of a cell that has ended."""
        def interrupt(text):
            if "reduces" in text:
                asyncio.ensure_future(self.client.km.interrupt_kernel())
        source = f"%%ddrun\n{before}\nif rank == 0:\n    print('reduces')\n    dist.all_reduce(torch.ones(1))\ntime.sleep(1000)"
        return text_of(self.run_cell(self.client, source, seen=interrupt))

    def shown(self, source):
        return text_of(self.run_cell(self.client, source))

    def test_interrupts(self):
        """A new one can be made in the same processes; nothing of torch, IPython or Python holds the old one's store."""
        self.client = self.start()
        self.shown("%load_ext ddrun\n%ddrun start 2 --preload torch")
        self.shown("%%ddrun\nkept = rank")
        for number in range(int(os.environ.get("DDRUN_TEST_INTERRUPTS", 3))):
            with self.subTest(number):
                self.assertEqual(self.shown(self.BEGIN), "")
                self.shown("%%ddrun\ndist.group.WORLD")
                # A module that is imported meanwhile has the group as a default of functions.
                shown = self.interrupt("import sys; sys.modules.pop('torch.distributed.nn.functional', None)\n"
                                       "import torch.distributed.nn.functional")
                self.assertIn("torch's process group was ended on all ranks; init_process_group makes a new one", shown)
                self.assertEqual(self.shown(self.BEGIN + self.REDUCE[7:]), "[0] (2, 0)\n[1] (2, 1)\n")
        self.assertRegex(self.shown("%ddrun status"), r"\] \d+ MiB, process group of 2 \(gloo\)\n")

    def test_held_stores(self):
        """All ranks begin anew, and the line says by what."""
        self.client = self.start()
        self.shown("%load_ext ddrun\n%ddrun start 2 --preload torch")
        for before, holder in (("pair = {'a': (dist.new_group([0, 1]),)}", "variable pair of rank 0 held the store"),
                               ("group = dist.group.WORLD", "rank 0 did not stop, as variable group of rank 1 holds")):
            self.assertEqual(self.shown(self.BEGIN + "\nkept = rank"), "")
            self.assertRegex(self.interrupt(before), rf"{holder}.* torch's process group; all ranks were started anew, without variables")
            self.assertEqual(self.shown(self.BEGIN + self.REDUCE[7:]), "[0,1] (2, None)\n")


class Example(KernelTest):
    needs = (*KernelTest.needs, "torch")

    def test_example(self):
        """Its cells show what is stored with them, up to numbers. DDRUN_EXECUTED_NOTEBOOK names a file for it as executed."""
        def plain(outputs):
            outputs = [output for output in outputs if "image/png" not in output.get("data", ())]
            text = re.sub(r"\d+\.\d+|(?<=pids ).*", "N", text_of(outputs))
            return sorted(re.sub(r"(?<= on )[\w.-]+", "HOST", text).split("\n"))
        stored = self.format.read(DOCS / "notebook.ipynb", as_version=4)
        notebook = self.format.read(DOCS / "notebook.ipynb", as_version=4)
        client = self.start(notebook)
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                with self.subTest(cell.source):
                    client.execute_cell(cell, index)
                    self.assertEqual(kinds_of(cell.outputs), kinds_of(stored.cells[index].outputs))
                    self.assertEqual(plain(cell.outputs), plain(stored.cells[index].outputs))
        if target := os.environ.get("DDRUN_EXECUTED_NOTEBOOK"):
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)
                for output, before in zip(cell.get("outputs", [])[:0:-1], cell.get("outputs", [])[-2::-1]):
                    if output.output_type == before.output_type == "stream" and output.name == before.name:
                        before.text += output.text
                        cell.outputs.remove(output)
            notebook.metadata, text = stored.metadata, self.format.writes(notebook)
            for pattern, plainer in ((rf"(?<= on ){re.escape(socket.gethostname())}\b", "node7"), (r"\\u001b\[[\d;]*m", ""),
                                     (r"(?<=pids )[\d, ]+", "4711, 4712, 4713, 4714")):
                text = re.sub(pattern, plainer, text)
            pathlib.Path(target).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.executable != PYTHON and has_package("nbclient"):
        given = {name: os.environ[name] for name in ("DDRUN_EXECUTED_NOTEBOOK", "DDRUN_TEST_INTERRUPTS") if name in os.environ}
        os.execve(PYTHON, [PYTHON, *sys.argv], environment(**PACKAGE, **given, DDRUN_TEST_PROGRAM=DDRUN))
    faulthandler.dump_traceback_later(280, exit=True)
    main()
