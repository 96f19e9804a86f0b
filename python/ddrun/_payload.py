"""In the caller: pickles a call for ranks. The functions that rebuild its parts there are in _task and _home."""

import contextlib
import dataclasses
import functools
import inspect
import io
import os
import sys
import types
import typing

from ddrun import _home, _task


def payload(function, args=(), kwargs={}, put=frozenset()):
    """The call function(*args, **kwargs) for `perform`. put: names of __main__ that ranks have already, which are not sent.
    Raises TypeError that says what cannot be sent, ImportError if it needs cloudpickle."""
    try:
        return dumps((function, args, kwargs), put)
    except ImportError:
        raise
    except Exception as error:
        for what, part in parts(function, args, kwargs):
            try:
                dumps(part, put)
            except Exception as reason:
                raise TypeError(f"{what} cannot be sent to ranks: {reason}") from error
        raise


def parts(function, args, kwargs):
    """Of a call: (description, object)."""
    if function is _task.map_items:
        yield from ((f"item {number} of map", item) for number, item in enumerate(args[1], args[0]))
    if function is _task.set_mapped:
        (function,), args = args, ()
    name = getattr(function, "__qualname__", repr(function))
    yield from ((f"argument {number} of {name}", value) for number, value in enumerate(args, 1))
    yield from ((f"argument {word} of {name}", value) for word, value in kwargs.items())
    with contextlib.suppress(TypeError):  # no function
        nonlocals, variables, *_ = inspect.getclosurevars(function)
        yield from ((f"{word}, which {name} uses,", value) for word, value in {**variables, **nonlocals}.items())
    yield name, function


def dumps(call, put):
    main, found, file = sys.modules["__main__"], {}, io.BytesIO()
    pickler = task_pickler()(file)
    pickler.main, pickler.found, pickler.put = vars(main), found, put
    cloudpickle = sys.modules.get("cloudpickle")
    by_value = main.__name__ == "__mp_main__" and cloudpickle and \
        main.__name__ not in cloudpickle.list_registry_pickle_by_value()
    if by_value:  # in a child of multiprocessing
        cloudpickle.register_pickle_by_value(main)
    try:
        pickler.dump((call, Names(found)))
        return file.getvalue()
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(main)


@functools.lru_cache(None)
def task_pickler():
    class Pickler(_task.base_pickler()):
        """`main`: the caller's variables; `found`: what has a name there, filled while pickling; `put`: see payload."""

        def reducer_override(self, obj):
            kind, reduce = type(obj), super().reducer_override
            if kind is types.CodeType:
                return _task.located, (file_shown(obj.co_filename), *source_of(obj), *self.dispatch_table[kind](obj))
            if not issubclass(kind, REDUCED):
                return reduce(obj)
            if names := _home.find(obj, self.main):
                self.found.update(zip(names, (obj, self.main[names[1]])))
            if kind is types.FunctionType and obj.__globals__.get("__name__") in _home.MAIN:
                if RankNamespace not in map(type, self.globals_ref.values()):
                    self.globals_ref[id(obj.__globals__)] = RankNamespace()
            reduced = reduce_named(obj) or complete(obj, reduce(obj))
            if self.put and kind is types.FunctionType and isinstance(reduced, tuple):
                variables = reduced[2][1]["__globals__"]
                for name in self.put & variables.keys():
                    del variables[name]
            return reduced

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
        return _task.cached, (obj.__wrapped__, obj.cache_parameters())
    if kind in PARAMETERS and obj.__module__ in _home.MAIN:
        return kind, (obj.__name__, obj.__supertype__) if hasattr(obj, "__supertype__") else (obj.__name__,)
    return None


def complete(obj, reduced):
    """cloudpickle's reduction of a class with what it leaves out: slots, and what members of an Enum have of their own."""
    if not isinstance(obj, type) or reduced is NotImplemented or len(reduced) < 6:
        return reduced
    make, args, state, *_, setter = reduced
    if make.__name__ == "_make_skeleton_class" and vars(obj).get("__slots__"):
        args[3]["__slots__"] = obj.__slots__
    elif make.__name__ == "_make_skeleton_enum":
        own = {member.name: {name: value for name, value in vars(member).items() if name not in OF_MEMBERS} for member in obj}
        return make, args, (setter, state, own), None, None, _task.set_enum
    return reduced


OF_MEMBERS = "_name_", "_value_", "__objclass__", "_sort_order_"
