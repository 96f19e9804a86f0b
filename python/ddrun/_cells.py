"""Runs notebook cells on a rank, in an IPython shell without history whose namespace is the rank's __main__."""

import contextlib
import functools
import linecache
import os
import queue
import sys
import traceback
import warnings

from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell

from ddrun import _task, _worker


class Compiler(CachingCompiler):
    """Names a cell as the notebook does: stacks of `ddrun stacks` and of faulthandler have the name as it is."""

    def get_code_name(self, raw_code, transformed_code, number):
        name, lines = f"Cell In[{number}]", [line + "\n" for line in transformed_code.splitlines()]
        if linecache.cache.get(name, [lines] * 3)[2] == lines:
            return name
        return super().get_code_name(raw_code, transformed_code, number)  # another cell of this number


class ValueHook(DisplayHook):
    """Keeps the value of a cell's last expression, which the caller shows."""

    value = last = None  # of this cell; of any

    def __call__(self, result=None):
        if result is not None and not self.quiet():
            self.value = self.last = self.shell.user_ns["_"] = result


class Publisher(DisplayPublisher):
    """Sends what display() and clear_output() do to the caller, from the first of a cell's ranks; text is printed by each."""

    first = True

    def publish(self, data, metadata=None, *_, transient=None, update=False, **__):
        data = {kind: value for kind, value in data.items() if not kind.startswith("application/vnd.jupyter.widget-")}
        if set(data) == {"text/plain"} and not transient:
            print(data["text/plain"])
        elif data or transient:
            self.send("publish", data=data, metadata=metadata or {}, transient=transient or {}, update=update)

    def clear_output(self, wait=False):
        self.send("clear_output", wait=wait)

    def send(self, method, **arguments):
        """Blocks until it is shown, behind what was printed before it, for 1 s at most. Between tasks nothing is shown."""
        if not self.first or _worker.rank.running is None:
            return
        content = ", ".join(arguments.get("data", [method])), _task.dumps((method, arguments))
        with contextlib.suppress(queue.Empty):
            _worker.rank.ask("display", *content, timeout=1)


@functools.lru_cache(maxsize=None)
def shell():
    HistoryManager.enabled = False
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    made = InteractiveShell.instance(user_module=sys.modules["__main__"], displayhook_class=ValueHook,
                                     display_pub_class=Publisher)
    made.compile = Compiler()
    made.showsyntaxerror = lambda *_, **__: None  # the caller shows it, and a cell's exception
    made.register_magic_function(debug)
    made.showtraceback = lambda error=None, *_, **__: error and traceback.print_exception(*error)  # of a __repr__
    made.ask_exit = lambda: print("%ddrun stop ends the ranks", file=sys.stderr)
    # An interrupt may come between the making of a coroutine and its first step.
    warnings.filterwarnings("ignore", "coroutine 'InteractiveShell.run_cell_async' was never awaited")
    made.colors = "neutral" if hasattr(made, "theme") else "Neutral"
    return made


def debug(line):
    """%debug of the last cell, in place of IPython's."""
    if not _task.kept:
        return print("%debug: the last cell of this rank raised no exception", file=sys.stderr)
    _worker.rank.debug().post_mortem(_task.kept)


def forget():
    """Frees the last value, and what IPython knows of the last cell."""
    ipython, hook = shell(), shell().displayhook
    ipython.last_execution_result = None
    if ipython.user_ns.get("_") is hook.last:
        ipython.user_ns.pop("_", None)
    hook.value = hook.last = None


def run(source, first, number):
    """The formatted value of the last expression: (data by MIME type, metadata), or None. first: the cell's first rank;
    number: of the cell in the notebook."""
    ipython = shell()
    ipython.execution_count = number
    ipython.display_pub.first, ipython.displayhook.value = int(os.environ["RANK"]) == first, None
    result = ipython.run_cell(source, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        _task.explain_input(error)
        is_syntax = isinstance(error, SyntaxError)
        formatter = ipython.SyntaxTB if is_syntax else ipython.InteractiveTB
        structured = formatter.structured_traceback(type(error), error, [] if is_syntax else error.__traceback__, tb_offset=1)
        error.ddrun_traceback = formatter.stb2text(structured)
        ipython.InteractiveTB.tb = None
        _task.kept = error.__traceback__
        raise error
    value = ipython.displayhook.value
    return None if value is None else ipython.display_formatter.format(value)
