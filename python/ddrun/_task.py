"""In a rank: performs a task, which _payload has made, and pickles what it gives. Imports little: ranks begin with it."""

import contextlib
import functools
import gc
import io
import linecache
import os
import pickle
import reprlib
import sys
import traceback
import types

from ddrun import _home


kept = None  # traceback of a cell, for %debug


class ChildExit(SystemExit):
    """Ends a process that a task has forked: it does not answer for the rank."""


def located(file, first, lines, make, arguments):
    """A code object that tracebacks and inspect.getsource find. cloudpickle leaves the file out since 3.1."""
    if lines and not os.path.exists(file):
        known = linecache.cache.get(file, (0, None, [], file))[2]
        known += ["\n"] * (first - 1 + len(lines) - len(known))
        known[first - 1 : first - 1 + len(lines)] = lines
        linecache.cache[file] = 0, None, known, file  # None: it is not looked for on the disk
    return make(*arguments).replace(co_filename=file)


def cached(function, parameters):
    return functools.lru_cache(**parameters)(function)


def set_enum(made, state):
    setter, state, own = state
    setter(made, state)
    for name, attributes in own.items():
        vars(made[name]).update(attributes)


def perform(payload):
    """Calls the function."""
    with _home.receiving():
        (function, args, kwargs), _ = pickle.loads(payload)
    process = os.getpid()
    try:
        value = call(function, args, kwargs)
    except BaseException as error:
        if os.getpid() == process:
            raise
        if isinstance(error, SystemExit):
            raise ChildExit(error.code) from None
        sys.excepthook(type(error), error.with_traceback(own_trace(error)), error.__traceback__)
        raise ChildExit(1) from None
    if os.getpid() != process:
        raise ChildExit
    return value


def call(function, args, kwargs={}):
    value = function(*args, **kwargs)
    if isinstance(value, types.CoroutineType):
        import asyncio

        value = asyncio.run(value)
    return value


def set_mapped(function):
    """The function of `map_items`."""
    global mapped
    mapped = function


def map_items(first, items):
    """The values for a piece of what Group.map was given, whose first item has this number."""
    values = []
    for args in items:
        try:
            values.append(call(mapped, args))
        except BaseException as error:
            error.ddrun_item = f"item {first + len(values)} of map: {', '.join(map(reprlib.repr, args))}"
            raise
    return values


@functools.lru_cache(None)
def base_pickler():
    """cloudpickle's, or one that knows what is missing."""
    with contextlib.suppress(ImportError):
        from cloudpickle import Pickler

        return Pickler

    class Pickler(pickle.Pickler):
        globals_ref = {}

        def reducer_override(self, obj):
            if isinstance(obj, (type, types.FunctionType)):
                name = obj.__qualname__
                if obj.__module__ in _home.MAIN or "<" in name:
                    raise ImportError(f"{name} is in no module that ranks could import; to send it: pip install cloudpickle")
            return NotImplemented

    return Pickler


@functools.lru_cache(None)
def value_pickler():
    from ddrun._payload import NAMED

    class Pickler(base_pickler()):
        def reducer_override(self, obj):
            torch = sys.modules.get("torch")
            if torch and type(obj) is torch.Tensor and obj.device.type not in ("cpu", "meta"):
                return obj.detach().cpu().requires_grad_(obj.requires_grad).__reduce_ex__(2)
            if issubclass(type(obj), NAMED) and (names := _home.find(obj, _home.namespace())):
                if _home.named.get(names[1]) is _home.namespace()[names[1]]:
                    return NotImplemented
            return super().reducer_override(obj)

    return Pickler


def dumps(value):
    """A value for the caller. Tensors of devices come as those of the CPU: unpickling them would initialize CUDA in the caller.
    Classes and functions that came from the caller's __main__ are names there: by value they would overwrite it."""
    file = io.BytesIO()
    value_pickler()(file).dump(value)
    return file.getvalue()


def dump_result(value, what):
    """Raises TypeError that says what could not be sent."""
    try:
        return dumps(value)
    except Exception as error:
        raise TypeError(f"{what} cannot be sent: {type(error).__name__}: {error}") from None


def explain_input(error):
    """Says in the exception of input() what to write instead."""
    if error.args == ("EOF when reading a line",) and sys.stdin is sys.__stdin__:
        error.args = ("input() is not served on ranks; ask in the program that called ddrun and pass the answer as an argument, "
                      "or in a notebook: name = input() in a cell without %%ddrun, then %ddrun push name",)


def describe(error):
    """The exception (pickled, None if that fails), its one-line summary, its traceback without frames of this package, and the
    item of map that raised it."""
    explain_input(error)
    text = getattr(error, "ddrun_traceback", None) or "".join(traceback.format_exception(type(error), error, own_trace(error)))
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        pickled = dumps(error)
    except Exception:
        pickled = None
    return pickled, summary, text, getattr(error, "ddrun_item", None)


def own_trace(error):
    """Without the frames of this package before it."""
    trace, package = error.__traceback__, os.path.dirname(__file__)
    while trace and os.path.dirname(trace.tb_frame.f_code.co_filename) == package:
        trace = trace.tb_next
    return trace


def forget():
    """Frees what the frames of the traceback hold, and the last value of a cell."""
    global kept
    if cells := sys.modules.get("ddrun._cells"):
        cells.forget()
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    if kept:
        kept = None
        gc.collect()  # IPython's formatter leaves cycles


def put(values):
    """Sets names of __main__ that are the rank's own from now on, see `_home.receiving`."""
    _home.namespace().update(values)
    for name in values:
        _home.shared.pop(name, None)


def pull(name):
    return eval(name, _home.namespace())
