"""Functions of a program run on ranks as they would at home, with its classes, arguments and flags."""
import faulthandler
import os
import re
import subprocess
import sys
import textwrap

from harness import DDRUN, PYTHON, Running, VENV, environment, main
from test_group import PACKAGE, PackageTest

HEAD = '''"""The program's text."""
import concurrent.futures, dataclasses, enum, functools, multiprocessing, os, pickle, sys, typing
import ddrun

class Color(enum.Enum):
    RED = 1
    def __init__(self, number):
        self.half = number / 2

@dataclasses.dataclass
class Config:
    lr: float = 0.1
    color: Color = Color.RED

class Point(typing.NamedTuple):
    x: int

class Slots:
    __slots__ = ("value",)
    def __init__(self, value):
        self.value = value
    def __eq__(self, other):
        return self.value == other.value

class Twice(Slots):
    made = 0
    def __init__(self, value):
        super().__init__(value * factor)
    @functools.lru_cache(maxsize=3)
    def cached(self):
        return self.value
    __hash__ = object.__hash__

class Outer:
    class Inner:
        @functools.cached_property
        def three(self):
            return 3

T = typing.TypeVar("T")

class Box(typing.Generic[T]):
    def __init__(self, value: T):
        self.value = value

class Bad(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code

UserId = typing.NewType("UserId", int)

def decorator(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) + 1
    return wrapper

@decorator
def decorated(number: UserId):
    return number * factor

@functools.lru_cache(None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def copy(value):
    return pickle.loads(pickle.dumps(value))

factor = 2
'''


class ProgramTest(PackageTest):
    def run_python(self, *args, **variables):
        made = Running([PYTHON, *args], env={**PACKAGE, "HOME": self.tmp, **variables}, cwd=self.tmp)
        self.addCleanup(made.kill)
        return self.assert_success(made.wait())

    def run_program(self, text, *args, flags=(), **variables):
        (self.tmp / "program.py").write_text(HEAD + textwrap.dedent(text))
        return self.run_python(*flags, self.tmp / "program.py", *args, **variables)


class Functions(ProgramTest):
    def test_pickle(self):
        """What a function uses of the program can be pickled by name in ranks, and comes back as what the program has."""
        self.assertEqual(self.run_program("""
            def pickled(*given):
                named = [copy, decorated, fibonacci, Config, Outer.Inner, Color.RED, T, UserId]
                for value in named if sys.version_info > (3, 10) else named[:-1]:
                    assert copy(value) is value, value
                values = [Color.RED.half, Config(), Point(1), Twice(2), Box[int](3).value, functools.partial(even, 2)()]
                values.append(copy(Bad(3)).code)
                assert copy(values) == values
                assert type(copy(Outer.Inner())) is Outer.Inner and Outer.Inner().three == 3
                assert copy(Twice(2).cached)() == 4 and fibonacci(20) == 6765 and even(10) and decorated(2) == 5
                assert isinstance(given[0], Outer.Inner) and __doc__ == "The program's text." and __name__ == "__main__"
                return named[:6], values

            if __name__ == "__main__":
                method = Slots.__eq__
                (named, values), = ddrun.run(pickled, Outer.Inner(), nproc_per_node=1)
                assert named == [copy, decorated, fibonacci, Config, Outer.Inner, Color.RED]
                assert all(a is b for a, b in zip(named, [copy, decorated, fibonacci, Config, Outer.Inner, Color.RED]))
                assert values == [0.5, Config(), Point(1), Twice(2), 3, True, 3] and type(values[3]) is Twice
                assert Slots.__eq__ is method
                def fail():
                    Twice.made += 1
                    raise Bad(Twice.made)
                try:
                    ddrun.run(fail, nproc_per_node=1)
                except Bad as error:
                    print(error.code, Twice.made)
            """).out, "1 0\n")

    def test_processes(self):
        """Children of ranks import the program, as at home; a call of ddrun at its top level is an error there."""
        text = """
            def processes(methods):
                for method in methods:
                    context = multiprocessing.get_context(method)
                    with context.Pool(1) as pool:
                        assert pool.map(copy, [Config(3), Color.RED]) == [Config(3), Color.RED]
                    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
                        assert executor.submit(decorated, 4).result() == 9
                return methods

            def start():
                child = multiprocessing.get_context("spawn").Process(target=even, args=(2,))
                child.start(), child.join()
                return child.exitcode

            def caller(queue):
                queue.put(ddrun.run(copy, Config(5), nproc_per_node=1))
            """
        self.assertEqual(self.run_program(text + """
            if __name__ == "__main__":
                print(ddrun.run(processes, ["fork", "spawn", "forkserver"], nproc_per_node=1))
                queue = multiprocessing.get_context("spawn").Queue()
                child = multiprocessing.get_context("spawn").Process(target=caller, args=(queue,))
                child.start(), print(queue.get()), child.join()
            """).out, "[['fork', 'spawn', 'forkserver']]\n[Config(lr=5, color=<Color.RED: 1>)]\n")
        result = self.run_program(text + "print(ddrun.run(start, nproc_per_node=1))")
        self.assertEqual(result.out, "[1]\n")
        self.assertRegex(result.err, "RuntimeError: .* under `if __name__ == \"__main__\":`")

    def test_names(self):
        """Those that are put, or that a rank has bound anew, are the rank's until it is restarted; others the caller's."""
        self.assertEqual(self.run_program("""
            class Counted:
                count = 0
                def __init__(self, value): self.value = value
                def __reduce__(self):
                    Counted.count += 1
                    return Counted, (self.value,)
            def count():
                global counter
                counter += 1
                return counter
            def make():
                global model
                model = [1]
            def use():
                model.append(2)
                return model
            def of_data(): return data.value, [item.value for item in more]
            def helper(): return of_data()
            class Reader:
                def read(self): return data.value
            counter, rank, limit, data, more = 0, 7, 1, Counted(1), [Counted(2)]
            with ddrun.Group(1) as group:
                print("changed by the rank:", group.run(count), group.run(count), counter)
                print("unknown to the caller:", group.run(make), group.run(use), group.run(use), group.pull("model"))
                group.put(kept=Config(5), limit=50)
                print("put:", group.run(lambda: (isinstance(kept, Config), kept.lr, limit, rank, world_size, factor)))
                assert type(group.pull("kept")[0]) is Config
                counter, factor, limit = 100, 3, 2
                print("changed by the caller:", group.run(count), group.run(lambda: (limit, factor)))
                group.put(data=data)
                Counted.count, data.value = 0, 3
                print("put, not sent again:", group.run(helper), group.run(lambda: Reader().read()), Counted.count)
                print("by map:", group.map(lambda x: x + data.value, [1, 2]), Counted.count)
                more.append(Counted(4))
                print("changed in place:", group.run(of_data), group.run(of_data), Counted.count)
                group.put(data=Counted(8))
                print("put again:", group.run(of_data), "an argument:", group.run(lambda data: data.value, data))
                group.restart()
                print("started anew:", group.run(count), group.run(lambda: (limit, factor)), group.run(of_data))
                try:
                    group.run(use)
                except NameError as error:
                    print(error)
            with ddrun.Group(1) as group:
                print("another group:", group.run(of_data))
            """).out, """\
changed by the rank: [1] [2] 0
unknown to the caller: [None] [[1, 2]] [[1, 2, 2]] [[1, 2, 2]]
put: [(True, 5, 50, 7, 1, 2)]
changed by the caller: [3] [(50, 3)]
put, not sent again: [(1, [2])] [1] 1
by map: [2, 3] 1
changed in place: [(1, [2, 4])] [(1, [2, 4])] 5
put again: [(8, [2, 4])] an argument: [3]
started anew: [101] [(2, 3)] [(3, [2, 4])]
name 'model' is not defined
another group: [(3, [2, 4])]
""")

    def test_without_cloudpickle(self):
        """Functions of modules, what they raise, and cells; what needs it says so."""
        (self.tmp / "cloudpickle.py").write_text("raise ImportError('there is none')")
        (self.tmp / "work.py").write_text(textwrap.dedent("""
            class Bad(Exception):
                pass
            def add(first, second):
                if second > 5:
                    raise Bad(second)
                return first + second
            """))
        found = self.run_program("""
            import work
            print(ddrun.run(work.add, 1, second=2, nproc_per_node=2))
            for preload in ("", "json"):
                with ddrun.Group(2, preload=preload) as group:
                    print(group.run(work.add, 1, 2), group.map(work.add, [1, 2, 3], [4, 5, 5]))
                    group.put(x=3)
                    print(group.pull("x"))
                    for call in (lambda: group.run(work.add, 1, 6), lambda: group.run(even, 3), lambda: group.run(copy, Config()),
                                 lambda: group.run(lambda: 1), lambda: group.pull("type('f', (), {'__module__': '__main__'})")):
                        try:
                            print(call())
                        except Exception as error:
                            print(type(error).__name__, error)
            from IPython.core.interactiveshell import InteractiveShell
            shell = InteractiveShell.instance()
            shell.run_cell("%load_ext ddrun\\n%ddrun start 2")
            shell.run_cell_magic("ddrun", "", "class Own: pass\\nvalue = Own()\\nrank * 10")
            """, PYTHONPATH=f"{self.tmp}:{PACKAGE['PYTHONPATH']}").out
        needed = " is in no module that ranks could import; to send it: pip install cloudpickle\n"
        of_group = f"[3, 3] [5, 7, 8]\n[3, 3]\nBad 6\nImportError even{needed}ImportError copy{needed}ImportError <lambda>.<locals>.<lambda>{needed}" \
                   f"TypeError what the function returned on rank 0 cannot be sent: ImportError: f{needed}"
        self.assertRegex(found, re.escape(f"[3, 3]\n{of_group * 2}ranks 0,1 on ").replace("rank\\ 0", "rank\\ [01]")
                         + r".*\n\[0\] 0\n\[1\] 10\n$")

    def test_arguments_and_flags(self):
        """Flags are those of the interpreter, not of programs that it starts."""
        text = """
            def state():
                names = [name for name in os.environ if name.startswith("PYTHON") and name not in NOT_HERE]
                return (sys.argv, sys.flags[:], sys.warnoptions, sys._xoptions.get("importtime"), sys.flags.utf8_mode,
                        sys.pycache_prefix, sorted(names))
            NOT_HERE = ["PYTHON_EXEC", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"]
            if __name__ == "__main__":
                with ddrun.Group(1, preload="json", hosts=sys.argv[2] or None) as group:  # not `assert`: see -O
                    print([*ddrun.run(state, nproc_per_node=1), *group.run(state)] == [state()] * 2 or
                          [*ddrun.run(state, nproc_per_node=1), *group.run(state), state()])
            """
        flags = ["-O", "-s", "-W", "error::UserWarning", "-W", "ignore:such", "-X", "utf8", "-X", f"pycache_prefix={self.tmp}"]
        self.assertEqual(self.run_program(text, "--lr=0.5", "", flags=flags).out, "True\n")
        flags = ["-OO", "-B", "-X", "dev"]
        self.assertEqual(self.run_program(text, "-v", "localhost", flags=flags, PYTHONWARNINGS="default").out, "True\n")

    def test_tracebacks(self):
        """Name the program's file and show its lines, with all versions of cloudpickle; inspect finds the source."""
        text = """
            import inspect, re, cloudpickle
            def inner(x):
                return 1 / x
            def work(x):
                return [inner(each)
                        for each in x]
            def source():
                return inspect.getsource(inner)
            try:
                ddrun.run(work, [0], nproc_per_node=1)
            except ZeroDivisionError as error:
                trace = str(error.__cause__)
                print(re.findall(r'File ".*/program.py", line [0-9]+, in (?!<)(.*)\\n +(.*)', trace), "/ddrun/" in trace)
            print(ddrun.run(source, nproc_per_node=1)[0] == inspect.getsource(inner), cloudpickle.__version__)
            """
        expected = "[('work', 'return [inner(each)'), ('inner', 'return 1 / x')] False\nTrue "
        for version in ("==2.2.1", ""):
            with self.subTest(version):
                path = self.install(f"cloudpickle{version}")
                self.assertRegex(self.run_program(text, PYTHONPATH=path).out, f"^{re.escape(expected)}{version[2:] or '[0-9.]+'}\n$")

    def test_pytest(self):
        """Shows no frames of ddrun when a call fails."""
        (self.tmp / "test_it.py").write_text("import ddrun\n"
                                             "def fail(): 1 / 0\n"
                                             "def test_run(): ddrun.run(fail, nproc_per_node=1)\n"
                                             "def test_group():\n    with ddrun.Group(1) as group: group.run(fail)\n")
        made = Running([PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"], cwd=self.tmp,
                       env={**PACKAGE, "PYTHONPATH": self.install("pytest"), "HOME": self.tmp})
        self.addCleanup(made.kill)
        result = made.wait()
        self.assertIn("2 failed", result.out, str(result))
        self.assertIn("1 / 0", result.out)
        self.assertNotIn("ddrun/_", result.out)

    def install(self, package):
        """Returns a PYTHONPATH with it."""
        folder = self.tmp / package
        done = subprocess.run([PYTHON, "-m", "pip", "install", "-q", "--target", folder, package], capture_output=True, text=True,
                              check=False, timeout=120)
        if done.returncode:
            self.skipTest(f"{package} cannot be installed: {done.stderr}")
        return f"{folder}:{PACKAGE['PYTHONPATH']}"

    def test_path(self):
        """Entries for hooks, as those of editable installs, those that are relative, and those that are no text."""
        (self.tmp / "real" / "acme").mkdir(parents=True)
        (self.tmp / "real" / "acme" / "sub.py").write_text("VALUE = 5\n")
        (self.tmp / "beside").mkdir()
        (self.tmp / "beside" / "near.py").write_text("VALUE = 6\n")
        (self.tmp / "site").mkdir()
        (self.tmp / "site" / "sitecustomize.py").write_text(textwrap.dedent(f"""
            import importlib.machinery, sys
            def hook(path):
                if path != "__editable__.acme.finder.__path_hook__":
                    raise ImportError
                return hook
            hook.find_spec = lambda name, target=None: importlib.machinery.PathFinder.find_spec(name, ["{self.tmp}/real"])
            sys.path_hooks.append(hook)
            sys.path.append("__editable__.acme.finder.__path_hook__")
            """))
        path = f"{self.tmp / 'site'}:{PACKAGE['PYTHONPATH']}"
        self.assertEqual(self.run_program("""
            def load():
                os.chdir("/")
                import acme.sub, near
                return acme.sub.VALUE, near.VALUE
            sys.path += ["beside", None, b"beside"]
            print(ddrun.run(load, nproc_per_node=1))
            """, PYTHONPATH=path).out, "[(5, 6)]\n")

    def test_forked_child(self):
        """It ends as one of a program does, and the rank answers."""
        result = self.run_program("""
            def fork(end):
                import atexit
                if child := os.fork():
                    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                atexit.register(print, "at exit")
                return end()
            def fail():
                raise Bad(1)
            print(ddrun.run(fork, lambda: 5, nproc_per_node=1))
            with ddrun.Group(1) as group:
                print(group.map(fork, [lambda: 5, lambda: sys.exit(3), lambda: sys.exit("why"), fail]), group.run(even, 2))
            """)
        self.assertEqual(result.out.replace("[0] ", ""), "at exit\n[0]\n" + "at exit\n" * 4 + "[0, 3, 1, 1] [True]\n")
        self.assertRegex(result.err, r"(?s)Traceback [^\n]*\n[^\n]*in fork\n")
        self.assertNotIn("ddrun/_", result.err)

    def test_module(self):
        (self.tmp / "package").mkdir()
        (self.tmp / "package" / "__init__.py").touch()
        (self.tmp / "package" / "other.py").write_text("VALUE = 5\n")
        (self.tmp / "package" / "module.py").write_text(HEAD + textwrap.dedent("""
            def relative():
                from . import other
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    return pool.map(even, [1]), other.VALUE, __spec__.name, sys.argv[1:], copy(Config())
            if __name__ == "__main__":
                assert ddrun.run(relative, nproc_per_node=1) == [relative()], ddrun.run(relative, nproc_per_node=1)
            """))
        self.run_python("-m", "package.module", "x")


class Torch(ProgramTest):
    needs = ("cloudpickle", "torch")

    def test_torch(self):
        self.assertEqual(self.run_program("""
            import torch, torch.distributed as dist
            class Model(torch.nn.Linear):
                pass
            class Data(torch.utils.data.Dataset):
                def __len__(self):
                    return 4
                def __getitem__(self, index):
                    return index * factor
            def train(folder):
                dist.init_process_group("gloo")
                gathered = [None] * 2
                dist.all_gather_object(gathered, Config(dist.get_rank()))
                loaded = []
                if dist.get_rank() == 0:
                    torch.save(Model(1, 1), f"{folder}/model")
                    model = torch.load(f"{folder}/model", weights_only=False)
                    assert type(model) is Model
                    for method in ("fork", "spawn"):  # forkserver: see test_processes
                        loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=method)
                        loaded.append(torch.cat(list(loader)).tolist())
                dist.barrier()
                return [config.lr for config in gathered], loaded
            if __name__ == "__main__":
                print(ddrun.run(train, os.path.dirname(__file__), nproc_per_node=2))
            """).out, f"{[([0, 1], [[0, 2, 4, 6]] * 2), ([0, 1], [])]}\n")


if __name__ == "__main__":
    if sys.executable != PYTHON and list(VENV.glob("lib/python3*/site-packages/cloudpickle")):
        os.execve(PYTHON, [PYTHON, *sys.argv], environment(**PACKAGE, DDRUN_TEST_PROGRAM=DDRUN))
    faulthandler.dump_traceback_later(280, exit=True)
    main()
