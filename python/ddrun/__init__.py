"""Functions on all ranks of a job that the launcher ddrun, a native program, starts.

    values = ddrun.run(function, argument, nproc_per_node=4)

    with ddrun.Group(4, preload="torch") as group:  # processes that stay
        values = group.run(function, argument)
"""

import os
import site
import stat
import sys
import sysconfig

_MODULES = {"Group": "_group", "run": "_group", "RankDied": "_errors", "RankError": "_errors", "LaunchConfig": "_launchers",
            "elastic_launch": "_launchers", "notebook_launcher": "_launchers"}

_PACKAGE = os.path.dirname(os.path.abspath(__file__))  # before the program changes its directory

__all__ = ["__version__", "find_ddrun", *_MODULES]


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        return version("ddrun")
    if name in _MODULES:  # imported when used: finding the program needs none of them
        from importlib import import_module

        return getattr(import_module(f"ddrun.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__


def _places():
    """Directories in which an installer may have put the program of this package, those beside it first."""
    folder = os.path.dirname(_PACKAGE)
    yield os.path.join(folder, "bin")  # pip install --target
    python, packages = os.path.split(folder)
    lib, python = os.path.split(python)
    prefix, lib = os.path.split(lib)
    if lib.startswith("lib") and python.startswith(("python3", "pypy3")) and packages in ("site-packages", "dist-packages"):
        yield os.path.join(prefix, "bin")  # a virtual environment, the system, pip install --prefix, --user
    yield sysconfig.get_path("scripts")  # of this interpreter, if the package is not installed there: --editable
    yield sysconfig.get_path("scripts", vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    if site.ENABLE_USER_SITE:
        yield sysconfig.get_path("scripts", scheme="posix_user")


def _is_safe(path):
    """Whether no other user can have made or changed this, who could not change this package or Python too."""
    of_package, found = os.stat(_PACKAGE), os.stat(path)
    owners = {0, os.geteuid(), of_package.st_uid, os.stat(sys.prefix).st_uid, os.stat(sys.base_prefix).st_uid}
    return found.st_uid in owners and not found.st_mode & ~of_package.st_mode & stat.S_IWOTH


def find_ddrun() -> str:
    """The path of the program ddrun that was installed with this package.

    Raises FileNotFoundError that lists all places. PATH is not among them: a ddrun there may have another version. Nor is
    what another user may have put there. DDRUN_PROGRAM names another program, for those who build ddrun.
    """
    if program := os.environ.get("DDRUN_PROGRAM"):
        return program
    listed = ""
    for place in dict.fromkeys(filter(os.path.isabs, _places())):
        program, listed = os.path.join(place, "ddrun"), f"{listed}\n  {place}"
        if os.access(program, os.X_OK) and os.path.isfile(program):
            if _is_safe(place) and _is_safe(program):
                return program
            listed += ": there is one that other users may have put there; not taken"
    raise FileNotFoundError(
        f"the program ddrun is not in any of these; install the package anew (pip install --force-reinstall ddrun):{listed}"
    )


def load_ipython_extension(shell):
    from ddrun._magics import DdrunMagics

    shell.register_magics(DdrunMagics)
