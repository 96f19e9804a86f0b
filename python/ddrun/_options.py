"""Options of ddrun that are given to calls, and those that the package needs itself."""

import inspect
import shlex

# Words of the command line in front of a caller's options, so that variables and settings files do not change these.
SWITCHED_OFF = [*(f"--{name}=0" for name in ("dry-run", "module", "no-python", "run-path")), "--fold=never", "--progress=all"]

_REASONS = {
    **dict.fromkeys(("log-line-prefix-template", "label"), "ranks are told apart by it; show(stream, text) gets their lines"),
    **dict.fromkeys(("events", "stdin", "end-with-parent"), "it is given already"),
    **dict.fromkeys(("module", "no-python", "run-path"), "ranks run functions"),
    **dict.fromkeys(("dry-run", "help", "version", "print-completion"), "it starts no ranks"),
    "verbose": "--quiet is given already",
}
_SHORT = {"m": "module", "h": "help", "V": "version", "v": "verbose"}


def words(nproc_per_node, hosts, preload, options, cells=False):
    """The words of the command line. hosts, preload: lists, or as there; options: a list, or one text."""
    hosts, preload = (names if isinstance(names, str) else ",".join(names or ()) for names in (hosts, preload))
    if preload:  # PYTHONSAFEPATH: the server would not find _rank
        preload = ["--env=PYTHONSAFEPATH=", f"--preload=_rank,{'ddrun._cells,' * cells}{preload}"]
    return [f"--nproc-per-node={nproc_per_node}", *[f"--hosts={hosts}"] * bool(hosts), *preload,
            *(shlex.split(options) if isinstance(options, str) else options)]


def check_parameters(function, **given):
    """Raises TypeError if a word that is given could be meant for the function."""
    try:
        names = inspect.signature(function).parameters.keys() - getattr(function, "keywords", {}).keys()
    except (TypeError, ValueError):  # it has none
        return
    if name := next((name for name, value in given.items() if value and name in names), None):
        raise TypeError(f"{name} is a parameter of this call and of {getattr(function, '__qualname__', 'the function')}; give "
                        f"the latter its value by functools.partial(function, {name}=...)")


def check_options(options):
    """Raises an exception that names an option, or a program, with which no call would work."""
    before = "--="
    for word in map(str, options):
        name = word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else None
        # Other short options take the rest of the word as their value. A value that begins with a dash follows an =.
        letters = word[1:len(word) - len(word[1:].lstrip("mhVvq"))] if word.startswith("-") and name is None else ""
        for found in (name, *map(_SHORT.get, letters)):
            if found in _REASONS:
                raise ValueError(f"the option {word.partition('=')[0]} is not for calls of functions: {_REASONS[found]}")
        if name == "" or not word.startswith("-") and before.startswith("--") and "=" in before:
            raise ValueError(f"options end before {word!r}, but ranks run functions, no other program")
        before = word
