"""ddrun launches the workers of distributed training. The launcher is a native program; this package finds it."""

import os
import sys
import sysconfig

_MODULES = {"Group": "_group", "run": "_group", "RankDied": "_errors", "RankError": "_errors", "LaunchConfig": "_launchers",
            "elastic_launch": "_launchers", "notebook_launcher": "_launchers"}

__all__ = ["__version__", "find_ddrun", *_MODULES]


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        return version("ddrun")
    if name in _MODULES:  # imported when used: finding the program needs none of them
        from importlib import import_module

        return getattr(import_module(f"ddrun.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _places():
    """Directories in which an installer may have put the program of this package, the likeliest first."""
    package = os.path.dirname(os.path.abspath(__file__))
    site = os.path.dirname(package)
    yield sysconfig.get_path("scripts")  # of this interpreter: a virtual environment, or the system
    yield sysconfig.get_path("scripts", vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    yield os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(site))), "bin")  # pip install --prefix
    yield os.path.join(site, "bin")  # pip install --target
    yield sysconfig.get_path("scripts", scheme="posix_user")  # pip install --user


def find_ddrun() -> str:
    """The path of the program ddrun that was installed with this package.

    Raises FileNotFoundError that lists all places. PATH is not among them: a ddrun there may have another version.
    DDRUN_PROGRAM names another program, for those who build ddrun.
    """
    if program := os.environ.get("DDRUN_PROGRAM"):
        return program
    places = list(dict.fromkeys(_places()))
    for place in places:
        program = os.path.join(place, "ddrun")
        if os.access(program, os.X_OK) and os.path.isfile(program):
            return program
    listed = "".join(f"\n  {place}" for place in places)
    raise FileNotFoundError(
        f"the program ddrun is not in any of these; install the package anew (pip install --force-reinstall ddrun):{listed}"
    )


def load_ipython_extension(shell):
    from ddrun._magics import DdrunMagics

    shell.register_magics(DdrunMagics)
