"""What a task is: a pickled function and its arguments, made by the caller and called by a rank, and what comes back."""

import functools
import io
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
        raise ImportError("calls of ranks need cloudpickle: pip install 'ddrun[python]'") from error

    main, found = sys.modules["__main__"], {}

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            if issubclass(type(obj), NAMED) and (names := _home.find(obj, vars(main))):
                found.update(zip(names, (obj, vars(main)[names[1]])))
            if type(obj) is types.FunctionType and obj.__globals__.get("__name__") in _home.MAIN:
                if RankNamespace not in map(type, self.globals_ref.values()):
                    self.globals_ref[id(obj.__globals__)] = RankNamespace()
            reduced = reduce_named(obj) or super().reducer_override(obj)
            if type(reduced) is tuple and reduced[0].__name__ == "_make_skeleton_class" and vars(obj).get("__slots__"):
                reduced[1][3]["__slots__"] = obj.__slots__  # else its instances have a __dict__ there
            return reduced

    by_value = main.__name__ == "__mp_main__" and "__mp_main__" not in cloudpickle.list_registry_pickle_by_value()
    if by_value:  # in a child of multiprocessing
        cloudpickle.register_pickle_by_value(main)
    try:
        file = io.BytesIO()
        Pickler(file).dump(((function, args, kwargs), Names(found)))
        return file.getvalue()
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(main)


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


# What pickle takes for a name in a module.
CACHED = type(functools.lru_cache(len))
NAMED = tuple(kind for kind in (type, types.FunctionType, CACHED, *(getattr(typing, name, None) for name in (
    "TypeVar", "NewType", "ParamSpec", "TypeVarTuple"))) if isinstance(kind, type))


def reduce_named(obj):
    """For what cloudpickle does not send by value, though it is of __main__."""
    kind = type(obj)
    if kind is functools.cached_property:  # it has a lock up to Python 3.11
        return rebuild_property, (obj.func, obj.attrname)
    if kind not in NAMED or getattr(obj, "__module__", None) not in _home.MAIN:
        return None
    if kind is CACHED:
        return rebuild_cached, (obj.__wrapped__, obj.cache_parameters())
    if kind.__name__ == "NewType":
        return kind, (obj.__name__, obj.__supertype__), dict(vars(obj))
    if kind.__name__ in ("ParamSpec", "TypeVarTuple"):
        return rebuild_parameter, (kind, obj.__name__, obj.__module__)
    return None


def rebuild_property(function, name):
    made = functools.cached_property(function)
    made.__set_name__(None, name)
    return made


def rebuild_cached(function, parameters):
    return functools.lru_cache(**parameters)(function)


def rebuild_parameter(kind, name, module):
    made = kind(name)
    made.__module__ = module
    return made


def perform(payload):
    """In a rank: calls the function."""
    with _home.receiving():
        (function, args, kwargs), _ = pickle.loads(payload)
    process = os.getpid()
    try:
        value = function(*args, **kwargs)
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
