"""What a rank takes over from the program that called ddrun, so that functions run there as they would at home."""

import contextlib
import importlib.machinery
import os
import sys
import warnings

MAIN = "__main__", "__mp_main__"  # the second: as multiprocessing's children import a program
SWITCHES = {"optimize": "OPTIMIZE", "dont_write_bytecode": "DONTWRITEBYTECODE", "no_user_site": "NOUSERSITE", "debug": "DEBUG",
            "safe_path": "SAFEPATH", "verbose": "VERBOSE", "dev_mode": "DEVMODE"}
X_OPTIONS = {"utf8": "UTF8", "importtime": "PROFILEIMPORTTIME", "faulthandler": "FAULTHANDLER", "tracemalloc": "TRACEMALLOC",
             "pycache_prefix": "PYCACHEPREFIX", "warn_default_encoding": "WARNDEFAULTENCODING", "perf": "PERFSUPPORT",
             "no_debug_ranges": "NODEBUGRANGES", "int_max_str_digits": "INTMAXSTRDIGITS", "gil": "_GIL",
             "frozen_modules": "_FROZEN_MODULES", "cpu_count": "_CPU_COUNT", "perf_jit": "_PERF_JIT_SUPPORT", "tlbc": "_TLBC",
             "thread_inherit_context": "_THREAD_INHERIT_CONTEXT", "context_aware_warnings": "_CONTEXT_AWARE_WARNINGS",
             "disable-remote-debug": "_DISABLE_REMOTE_DEBUG"}
shared = {}  # in a rank: what its __main__ has from the caller, by name
named = {}  # of these the classes and functions that the caller has under the same name


# In the caller.


def of_caller():
    """What `take_over` and `make_main` need, picklable."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return {"path": [absolute(entry) for entry in sys.path if isinstance(entry, str)], "argv": [str(word) for word in sys.argv],
            "file": file and os.fsdecode(file), "name": getattr(getattr(main, "__spec__", None), "name", None),
            "package": getattr(main, "__package__", None),
            "flags": {name: (value, os.environ.get(name)) for name, value in {"PYTHONSAFEPATH": "", **flags()}.items()}}


def absolute(entry):
    """Of sys.path. What is no path is for a hook, as those of editable installs."""
    with contextlib.suppress(OSError):  # the working directory was removed
        if not entry or os.path.exists(entry):
            return os.path.abspath(entry)
    return entry


def flags():
    """The options of this interpreter as variables. Those that -I implies are left out, as it cannot be passed on."""
    implied = ("no_user_site", "safe_path") if sys.flags.isolated else ()
    found = {name: int(value) for flag, name in SWITCHES.items() if flag not in implied
             and (value := getattr(sys.flags, flag, 0))}
    found.update((name, 1 if value is True else value) for option, name in X_OPTIONS.items()
                 if (value := sys._xoptions.get(option)) is not None)
    if given := [option for option in sys.warnoptions if "," not in option]:
        found["WARNINGS"] = ",".join(given)
    return {f"PYTHON{name}": str(value) for name, value in found.items()}


def refuse_import():
    """While a child of multiprocessing imports the program, a call at its top level would begin all anew."""
    process = sys.modules.get("multiprocessing.process")
    if process and getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError("this process of multiprocessing imports the program: put calls of ddrun under "
                           "`if __name__ == \"__main__\":`")


# In a rank.


def take_over(home):
    """In the server of --preload too, before it imports modules."""
    sys.path[:], sys.argv[:] = home["path"], home["argv"]
    for name, (value, before) in home["flags"].items():  # the interpreter has heeded it; other programs do not get it
        if os.environ.get(name) in (value, ""):
            del os.environ[name]
            if before is not None:
                os.environ[name] = before


def make_main(home):
    """A __main__ in which functions find what they would find in the caller's, and children of multiprocessing its file."""
    module = type(sys)("__main__")
    sys.modules.update(dict.fromkeys(MAIN, module))
    module.__package__ = home["package"]
    if home["name"]:
        module.__spec__ = importlib.machinery.ModuleSpec(home["name"], None, origin=home["file"])
    if home["file"]:
        module.__file__ = home["file"]
    vars(module).update(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    shared.update(vars(module))
    del shared["__name__"]
    module.__builtins__ = sys.modules["builtins"]
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # by the thread of _worker


def namespace():
    return vars(sys.modules["__main__"])


@contextlib.contextmanager
def receiving():
    """While a call is unpickled, which sets names in __main__: those that are the rank's own stay as they are. These are
    names that were put, or that have been bound to another object since they came from the caller."""
    main = namespace()
    before = dict(main)
    try:
        yield
    finally:
        for name, value in list(main.items()):
            if name in before and before[name] is not shared.get(name, shared):
                main[name] = before[name]
            elif before.get(name, shared) is not value:
                shared[name] = value


def bind(names, more):
    """While a call is unpickled: classes and functions under the names that they have in the caller's __main__."""
    for name, value in names.items():
        if "." not in name:
            namespace()[name] = named[name] = value
        elif isinstance(value, type):
            value.__qualname__ = name  # which cloudpickle does not send, nor a TypeVar's module
        if value.__module__ not in MAIN:
            value.__module__ = "__main__"
    return more


def find(obj, space):
    """Whether pickle finds a class or function of __main__ by its name in `space`: (that name, its first part) or None."""
    if getattr(obj, "__module__", None) not in MAIN:
        return None
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", "")
    first, *path = name.split(".")
    there = space.get(first)
    for word in path:
        there = getattr(there, word, None)
    return (name, first) if there is obj else None
