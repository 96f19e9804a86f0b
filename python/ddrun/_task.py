"""What a task is: a pickled function and its arguments, made by the caller and called by a rank, and what comes back."""

import dataclasses
import functools
import inspect
import io
import linecache
import os
import pickle
import sys
import traceback
import types
import typing

from ddrun import _home


class ChildExit(SystemExit):
    """Ends a process that a task has forked: it does not answer for the rank."""


def payload(function, /, *args, **kwargs):
    """In the caller: the call function(*args, **kwargs) for `perform`."""
    try:
        import cloudpickle
    except ImportError as error:  # users of the program alone do not need it
        raise ImportError("calls of ranks need cloudpickle: pip install cloudpickle") from error

    main, found, file = sys.modules["__main__"], {}, io.BytesIO()
    by_value = main.__name__ == "__mp_main__" and "__mp_main__" not in cloudpickle.list_registry_pickle_by_value()
    if by_value:  # in a child of multiprocessing
        cloudpickle.register_pickle_by_value(main)
    try:
        pickler = task_pickler()(file)
        pickler.main, pickler.found = vars(main), found
        pickler.dump(((function, args, kwargs), Names(found)))
        return file.getvalue()
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(main)


@functools.lru_cache(None)
def task_pickler():
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        """`main`: the caller's variables; `found`: what has a name there, filled while pickling."""

        def reducer_override(self, obj):
            kind, reduce = type(obj), super().reducer_override
            if kind is types.CodeType:
                return located, (file_shown(obj.co_filename), *source_of(obj), *self.dispatch_table[kind](obj))
            if not issubclass(kind, REDUCED):
                return reduce(obj)
            if names := _home.find(obj, self.main):
                self.found.update(zip(names, (obj, self.main[names[1]])))
            if kind is types.FunctionType and obj.__globals__.get("__name__") in _home.MAIN:
                if RankNamespace not in map(type, self.globals_ref.values()):
                    self.globals_ref[id(obj.__globals__)] = RankNamespace()
            return reduce_named(obj) or complete(obj, reduce(obj))

    return Pickler


def file_shown(name):
    """Of a notebook's cell its number."""
    shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(name)
    return name if number is None else f"Cell In[{number}]"


@functools.lru_cache(1000)
def source_of(code):
    """The number of its first line, and its lines, as far as they can be had."""
    try:
        lines, first = inspect.getsourcelines(code)
    except Exception:  # no file, or not the file that it was made from
        return 1, ()
    return max(first, 1), tuple(lines)


def located(file, first, lines, make, arguments):
    """In a rank: a code object that tracebacks and inspect.getsource find. cloudpickle leaves the file out since 3.1."""
    if lines and not os.path.exists(file):
        known = linecache.cache.get(file, (0, None, [], file))[2]
        known += ["\n"] * (first - 1 + len(lines) - len(known))
        known[first - 1 : first - 1 + len(lines)] = lines
        linecache.cache[file] = 0, None, known, file  # None: it is not looked for on the disk
    return make(*arguments).replace(co_filename=file)


class RankNamespace:
    """Unpickled as the globals of functions of __main__."""

    def __reduce__(self):
        return _home.namespace, ()


class Names:
    """Pickled after all else, when it is known what has a name; what has one may refer to more."""

    def __init__(self, found):
        self.found = found

    def __reduce__(self):
        names = dict(self.found)
        self.found.clear()
        return (_home.bind, (names, Names(self.found))) if names else (dict, ())


CACHED = type(functools.lru_cache(len))
PARAMETERS = tuple(kind for name in ("NewType", "ParamSpec", "TypeVarTuple")  # as far as this Python has them
                   if isinstance(kind := getattr(typing, name, None), type))
NAMED = type, types.FunctionType, typing.TypeVar, CACHED, *PARAMETERS  # what pickle sends as a name
REDUCED = *NAMED, functools.cached_property, dataclasses._FIELD_BASE


def reduce_named(obj):
    """For what cloudpickle cannot send, or sends as a name that a rank does not have yet."""
    kind = type(obj)
    if kind is functools.cached_property:  # it has a lock up to Python 3.11
        return kind, (obj.func,), {"attrname": obj.attrname}
    if kind is dataclasses._FIELD_BASE:  # for cloudpickle 2
        return obj.name
    if kind is CACHED and obj.__module__ in _home.MAIN:
        return cached, (obj.__wrapped__, obj.cache_parameters())
    if kind in PARAMETERS and obj.__module__ in _home.MAIN:
        return kind, (obj.__name__, obj.__supertype__) if hasattr(obj, "__supertype__") else (obj.__name__,)
    return None


def cached(function, parameters):
    return functools.lru_cache(**parameters)(function)


def complete(obj, reduced):
    """cloudpickle's reduction of a class with what it leaves out: slots, and what members of an Enum have of their own."""
    if not isinstance(obj, type) or reduced is NotImplemented or len(reduced) < 6:
        return reduced
    make, args, state, *_, setter = reduced
    if make.__name__ == "_make_skeleton_class" and vars(obj).get("__slots__"):
        args[3]["__slots__"] = obj.__slots__
    elif make.__name__ == "_make_skeleton_enum":
        own = {member.name: {name: value for name, value in vars(member).items() if name not in OF_MEMBERS} for member in obj}
        return make, args, (setter, state, own), None, None, set_enum
    return reduced


OF_MEMBERS = "_name_", "_value_", "__objclass__", "_sort_order_"


def set_enum(made, state):
    setter, state, own = state
    setter(made, state)
    for name, attributes in own.items():
        vars(made[name]).update(attributes)


def perform(payload):
    """In a rank: calls the function."""
    with _home.receiving():
        (function, args, kwargs), _ = pickle.loads(payload)
    process = os.getpid()
    try:
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            import asyncio

            value = asyncio.run(value)
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


def dumps(value):
    """In a rank: a value for the caller. Tensors of devices come as those of the CPU: unpickling them would initialize CUDA in
    the caller. Classes and functions that came from the caller's __main__ are names there: by value they would overwrite it."""
    torch = sys.modules.get("torch")

    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            if torch and type(obj) is torch.Tensor and obj.device.type not in ("cpu", "meta"):
                return obj.detach().cpu().requires_grad_(obj.requires_grad).__reduce_ex__(2)
            if issubclass(type(obj), NAMED) and (names := _home.find(obj, _home.namespace())):
                if _home.named.get(names[1]) is _home.namespace()[names[1]]:
                    return NotImplemented
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def dump_result(value, what):
    """Raises TypeError that says what could not be sent."""
    try:
        return dumps(value)
    except Exception as error:
        raise TypeError(f"{what} cannot be sent: {type(error).__name__}: {error}") from None


def describe(error):
    """The exception (pickled, None if that fails), its one-line summary, its traceback without frames of this package."""
    text = getattr(error, "ddrun_traceback", None) or "".join(traceback.format_exception(type(error), error, own_trace(error)))
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        pickled = dumps(error)
    except Exception:
        pickled = None
    return pickled, summary, text


def own_trace(error):
    """Without the frames of this package before it."""
    trace, package = error.__traceback__, os.path.dirname(__file__)
    while trace and os.path.dirname(trace.tb_frame.f_code.co_filename) == package:
        trace = trace.tb_next
    return trace


def put(values):
    """Sets names of __main__ that are the rank's own from now on, see `_home.receiving`."""
    _home.namespace().update(values)
    for name in values:
        _home.shared.pop(name, None)


def pull(name):
    return eval(name, _home.namespace())
