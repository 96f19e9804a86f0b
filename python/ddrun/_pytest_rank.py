"""In a rank: the session of pytest in which it runs the tests that the caller names. It stays for the next one."""

import bdb
import contextlib
import os
import sys
import time

import pytest

from ddrun import _process_group, _task, _worker

__tracebackhide__ = True  # by pytest

plugin = None  # of the session that there is


class Plugin:
    """Keeps the reports of a test, and says at once when this rank has failed."""

    def __init__(self, config, order, pdb):
        self.config, self.session, self.pdb = config, pytest.Session.from_config(config), pdb
        self.items, self.following, self.errors = {}, dict(zip(order, order[1:])), {}  # by node id
        self.reports, self.warnings, self.folder = [], [], None  # of the test
        capture = config.pluginmanager.getplugin("capturemanager")

        def write_marks(number):  # in the output itself
            with capture.global_and_fixture_disabled():
                _worker.Rank.write_marks(_worker.rank, number)

        _worker.rank.write_marks = write_marks

    def find(self, nodeid):
        """Of an item, None if there is none. xdist adds "@" and a group in the caller only."""
        return nodeid and (self.items.get(nodeid) or self.items.get(nodeid.rpartition("@")[0]))

    def pytest_collection_finish(self, session):
        self.items = {item.nodeid: item for item in session.items}

    def pytest_collectreport(self, report):
        if report.failed:
            self.errors[report.nodeid] = report.longreprtext

    def pytest_runtest_makereport(self, call):
        if call.excinfo and call.excinfo.errisinstance(bdb.BdbQuit):
            pytest.exit("Quitting debugger")

    def pytest_runtest_logreport(self, report):
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))
        if report.failed or hasattr(report, "wasxfail") and report.skipped:
            _worker.rank.tell("over", (time.monotonic(), self.reports[-1]))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        text, kind = str(warning_message.message), warning_message.category
        if kind.__module__ != "builtins":  # it may be unknown to the caller
            text, kind = f"{kind.__name__}: {text}", UserWarning
        self.warnings.append((text, kind, warning_message.filename, warning_message.lineno, when, nodeid, location))

    def pytest_exception_interact(self, call, report):
        if self.pdb and report.when != "collect":
            debugger = _worker.rank.debug()
            debugger.message(report.longreprtext)
            if debugger.post_mortem(call.excinfo.tb):
                pytest.exit("Quitting debugger")

    @pytest.fixture
    def tmp_path(self):
        """One folder for all ranks."""
        return self.folder

    @pytest.fixture(autouse=True)
    def _ddrun_process_group(self, request):
        mark = request.node.get_closest_marker("ranks")
        if not (backend := mark and parse(mark)[1]):
            yield
            return
        import torch.distributed as dist

        dist.init_process_group(backend)
        yield
        if dist.is_initialized():
            dist.destroy_process_group()


def ranks(number, backend=None):
    if type(number) is not int or number < 1:
        raise TypeError(f"ranks() takes the number of ranks, as in @pytest.mark.ranks(4), and not {number!r}")
    return number, backend


def parse(mark):
    """(number, backend or None)"""
    return ranks(*mark.args, **mark.kwargs)


def begin(options, files, order, worker, pdb):
    """A session, in place of one that was interrupted. order: node ids of tests in these files. worker: what xdist's plugins
    know of the caller, if it is a worker. Returns `store_is_held()`: then it needs a new process."""
    global plugin
    end(interrupted=True)
    if store_is_held():
        return True
    options["basetemp"] += f"-{os.environ['RANK']}"
    config = pytest.Config.fromdictargs(options, files)
    plugin = Plugin(config, order, pdb)
    if worker:
        config.workerinput = worker
    config.pluginmanager.register(plugin, "ddrun_rank")
    config._do_configure()
    if reporter := config.pluginmanager.getplugin("terminalreporter"):
        reporter._tw._file = open(os.devnull, "w")
    config.hook.pytest_sessionstart(session=plugin.session)
    config.hook.pytest_collection(session=plugin.session)
    return False


def test(nodeid, folder):
    """Returns (reports, warnings, whether a process group was left, `store_is_held()`)."""
    plugin.reports, plugin.warnings, plugin.folder, before = [], [], folder, _process_group.current()
    if not (item := plugin.find(nodeid)):
        why = "\n".join(text for file, text in plugin.errors.items() if nodeid.startswith(file))
        raise LookupError(f"rank {os.environ['RANK']} has not collected {nodeid}: "
                          f"{why or 'names of tests may not differ between processes'}")
    plugin.session._setupstate.teardown_exact(item)  # if the order was another one, as with xdist
    plugin.config.hook.pytest_runtest_protocol(item=item, nextitem=plugin.find(plugin.following.get(nodeid)))
    _task.forget()
    return plugin.reports, plugin.warnings, not before and bool(_process_group.current()), store_is_held()


def store_is_held():
    """Whether something of an ended process group keeps its store open, which the next one would find."""
    if os.environ["RANK"] == "0" and "torch.distributed" in sys.modules and not _process_group.current():
        _process_group.hosted.add(int(os.environ["MASTER_PORT"]))
        return bool(_process_group.store_holder())
    return False


def end(interrupted=False):
    """Of the session: what its fixtures have made is torn down."""
    global plugin
    ended, plugin = plugin, None
    if ended:
        if interrupted:
            _process_group.leave()
        try:
            with contextlib.suppress(*[Exception] * interrupted):
                ended.config.hook.pytest_sessionfinish(session=ended.session, exitstatus=pytest.ExitCode.OK)
        finally:
            ended.config._ensure_unconfigure()
