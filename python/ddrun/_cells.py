"""Runs notebook cells on a rank, in an IPython shell without history whose namespace is the rank's __main__."""

import functools
import os
import sys
import warnings

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell

from ddrun import _worker


class ValueHook(DisplayHook):
    """Keeps the value of a cell's last expression, which the caller shows."""

    value = None

    def __call__(self, result=None):
        if result is not None and not self.quiet():
            self.value = self.shell.user_ns["_"] = result


class Publisher(DisplayPublisher):
    """Sends what display() shows to the caller, from the first of a cell's ranks; text is printed by each."""

    first = True

    def publish(self, data, metadata=None, **options):
        if set(data) == {"text/plain"}:
            print(data["text/plain"])
        elif self.first:
            _worker.rank.send(None, "display", (data, metadata or {}))


@functools.lru_cache(maxsize=None)
def shell():
    HistoryManager.enabled = False
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    made = InteractiveShell.instance(user_module=sys.modules["__main__"], displayhook_class=ValueHook,
                                     display_pub_class=Publisher)
    made.showtraceback = made.showsyntaxerror = lambda *_, **__: None  # the caller shows it
    made.ask_exit = lambda: print("%ddrun stop ends the ranks", file=sys.stderr)
    # An interrupt may come between the making of a coroutine and its first step.
    warnings.filterwarnings("ignore", "coroutine 'InteractiveShell.run_cell_async' was never awaited")
    made.colors = "neutral" if hasattr(made, "theme") else "Neutral"
    return made


def run(source, first):
    """The formatted value of the last expression: (data by MIME type, metadata), or None. first: the cell's first rank."""
    ipython = shell()
    ipython.display_pub.first, ipython.displayhook.value = int(os.environ["RANK"]) == first, None
    result = ipython.run_cell(source, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        is_syntax = isinstance(error, SyntaxError)
        formatter = ipython.SyntaxTB if is_syntax else ipython.InteractiveTB
        structured = formatter.structured_traceback(type(error), error, [] if is_syntax else error.__traceback__, tb_offset=1)
        error.ddrun_traceback = formatter.stb2text(structured)
        ipython.InteractiveTB.tb = None  # its frames hold a process group, and that its store
        raise error
    value = ipython.displayhook.value
    return None if value is None else ipython.display_formatter.format(value)
