"""Tests that are marked with `ranks`, in the process of pytest: each runs on the ranks of a Group and is reported as one test.

A rank has a session of pytest (_pytest_rank) with the caller's options, in which it sets up, runs and tears down the test.
"""

import collections
import contextlib
import pickle
import re
import time
import warnings

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback

from ddrun import _pytest_rank
from ddrun._call import Call
from ddrun._errors import RankDied, add_stacks
from ddrun._group import Group
from ddrun._output import ranks_named

OTHERS_FINISH = 1  # seconds from the first failure of a rank until those that have not finished are interrupted
BEGIN_TIMEOUT = 60  # seconds, at least, until the ranks have imported the tests
OF_RANKS = {"usepdb": False, "trace": False, "setupshow": False, "log_file": None, "dist": "no", "tx": [], "numprocesses": None,
            "no_cov": True, "xmlpath": None}  # values of options: ranks have no input, and report to this process only
NOT_ON_RANKS = [f"no:{name}" for name in ("lfplugin", "nfplugin", "stepwise")]


class TestCall(Call):
    """The call in which ranks run one test. A rank says at once that it has failed."""

    def __init__(self, group, timeout):
        super().__init__(group, timeout)
        self.over = {}  # by rank: (time, report)

    def reports(self, item):
        """By rank, those of ranks too that have failed and not ended. Passes warnings on, each once."""
        found, recorded = {rank: [data] for rank, (_, data) in self.over.items()}, {}
        for rank, answer in self.values.items():
            if answer := pickle.loads(answer):
                found[rank] = answer[0]
                recorded.update(dict.fromkeys(answer[1]))
        for *said, when, nodeid, location in recorded:
            words = {"warning_message": warnings.WarningMessage(*said), "when": when, "nodeid": nodeid, "location": location}
            item.ihook.pytest_warning_recorded.call_historic(kwargs=words)
        return {rank: [read_report(item, data) for data in said] for rank, said in found.items()}

    def on_answer(self, peer, number, kind, content, *more):
        if kind != "over":
            return super().on_answer(peer, number, kind, content, *more)
        self.over.setdefault(peer.rank, content)
        self.deadline = min(self.deadline, time.monotonic() + OTHERS_FINISH)

    def time_out(self, stuck):
        self.failure = TimeoutError(f"{ranks_named(stuck)} had not finished after {self.timeout:g} s (--ranks-timeout)")
        if not self.over:
            add_stacks(self.failure, self.group.stacks(stuck))

    def debug(self, *request):
        """With the terminal's input and output, which pytest captures."""
        group, find = self.group, self.group.config.pluginmanager.getplugin
        capture, reporter, live = find("capturemanager"), find("terminalreporter"), group.live
        capture.suspend_global_capture(in_=True)
        if reporter and not live:
            reporter.ensure_newline()
        group.live = True
        try:
            super().debug(*request)
        finally:
            group.live = live
            capture.resume_global_capture()
            capture.suspend_global_capture()  # as it was: this process runs no test


class Ranks(Group):
    """The ranks of all tests with this number of them."""

    def __init__(self, size, config):
        self.size, self.config, self.kept = size, config, collections.defaultdict(str)  # by stream: what ranks print
        self.live = config.getoption("capture") == "no"
        self.begun = self.last = None  # the round of the ranks, if they have a session; the test's call
        preload = ",".join(filter(None, ["pytest", config.getoption("ranks_preload")]))
        super().__init__(size, preload=preload, show=self.show, timeout=config.getoption("ranks_timeout"))

    def show(self, stream, text):
        if self.live:
            self._output.write_console(stream, text)
        else:
            self.kept[stream] += text

    def _call(self, timeout):
        call = TestCall(self, self._timeout if timeout is None else timeout)
        self.last = self.last or call  # a call that is stopped makes others, to end process groups
        return call

    def begin(self, items):
        """A session on each rank, for these tests, unless there is one."""
        self.peers()  # of the round that is to come
        if self.begun == self._job.round:
            return
        config, self.begun = self.config, None
        options = {**vars(config.option), **OF_RANKS, "rootdir": str(config.rootpath),
                   "plugins": [*config.option.plugins, *NOT_ON_RANKS],
                   "basetemp": str(config._tmp_path_factory.getbasetemp() / f"ranks-{self.size}")}
        options.pop("file_or_dir", None)
        worker = getattr(config, "workerinput", None)  # of xdist
        files = list(dict.fromkeys(str(item.path) for item in items))
        words = options, files, [item.nodeid for item in items], worker, config.getoption("usepdb")
        timeout = max(self._timeout, BEGIN_TIMEOUT)
        if any(self.run(_pytest_rank.begin, *words, timeout=timeout)):
            self.restart()
            self.run(_pytest_rank.begin, *words, timeout=timeout)
        self.begun = self._job.round

    def test(self, item, items):
        """Raises what keeps the ranks from answering; what they have answered is in `last`. items: all tests of these ranks."""
        self.kept.clear()
        self.last = None
        self.begin(items)
        folder = self.config._tmp_path_factory.mktemp(re.sub(r"\W", "_", item.name)[:30])
        self.last, begun, self.begun = None, self.begun, None  # an interrupted session is ended
        *_, left, held = zip(*self.run(_pytest_rank.test, item.nodeid, folder))
        if any(held):
            self.restart()
        elif not (self.last.over and (any(left) or self.last.uneven())):
            self.begun = begun

    def has_ended(self):
        return self._job.status is not None

    def end(self):
        try:
            if not self.has_ended():
                self.run(_pytest_rank.end, interrupted=self.begun != self._job.round)
        finally:
            self.close(now=True)


class Tests:
    """Of a session: the marked tests, and the ranks that there are for them; both by the number of ranks."""

    def __init__(self, session):
        self.config, self.groups, self.items = session.config, {}, collections.defaultdict(list)
        for item in session.items:
            if mark := item.get_closest_marker("ranks"):
                with contextlib.suppress(TypeError):
                    self.items[_pytest_rank.parse(mark)[0]].append(item)

    def run(self, item):
        """(the group or None, what has kept its ranks from answering or None)"""
        group = None
        try:
            size, _ = _pytest_rank.parse(item.get_closest_marker("ranks"))
            group = self.groups.get(size)
            if not group or group.has_ended():
                group = self.groups[size] = Ranks(size, self.config)
            group.test(item, self.items[size])
        except pytest.exit.Exception as error:
            pytest.exit(f"rank {error.ddrun_rank}: {error.msg}", error.returncode)
        except pytest.fail.Exception as error:  # of a signal handler, as pytest-timeout's
            if group:
                group.restart()
            return group, error
        except Exception as error:
            return group, error
        return group, None

    @pytest.hookimpl(tryfirst=True)  # if plugins write files on ranks, those of this process come last
    def pytest_sessionfinish(self):
        with contextlib.ExitStack() as stack:
            for group in self.groups.values():
                stack.callback(group.end)


def run_test(item, nextitem):
    """For pytest_runtest_protocol."""
    plugins, hook = item.config.pluginmanager, item.ihook
    if not (tests := plugins.getplugin("ddrun_tests")):
        plugins.register(tests := Tests(item.session), "ddrun_tests")
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    *reports, last = merge(item, *tests.run(item))
    # Of what tests without ranks have set up in this process.
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), "teardown",
                                     (pytest.exit.Exception, KeyboardInterrupt))
    for report in [*reports, pytest.TestReport.from_item_and_call(item, call) if call.excinfo else last]:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def merge(item, group, error):
    """The reports of the first rank that has failed, else of rank 0; what else there is to say is in sections."""
    if not (call := group and group.last):
        return failure(item, error)
    reports = call.reports(item)
    over = sorted(call.over, key=lambda rank: call.over[rank][0])
    failed = [rank for rank in over if any(report.failed for report in reports[rank])]
    lead = None if error and not over else failed[0] if failed else 0 if 0 in reports else over[0]
    own = failure(item, error) if lead is None else reports[lead]
    shown = next((report for report in own if report.failed), own[1 % len(own)])  # else the call, if there was one
    texts = collections.defaultdict(list)  # (before, text): ranks
    for rank in sorted(reports.keys() - {lead}):
        for report in reports[rank]:
            if report.failed:
                text, when = report.longreprtext, "" if report.when == "call" else f"{report.when} of "
                if "\n>" in text:  # without the sources around these lines
                    text = "".join(re.findall(r"^(?:>|E |\S+:\d+: ).*\n?", text, re.M))
                texts[when, text].append(rank)
        for title, text in reports[rank][-1].sections:
            texts[f"{title} of ", text].append(rank)
    if silent := error and over and sorted(set(range(group.size)) - reports.keys()):
        why = f"interrupted {OTHERS_FINISH} s after rank {over[0]} had failed"
        texts["", error.reason if isinstance(error, RankDied) else why] = silent
    shown.sections += [(before + ranks_named(ranks), text) for (before, text), ranks in texts.items()]
    shown.sections += [(f"Captured {stream} of ranks", text) for stream, text in group.kept.items()]
    if page := getattr(error, "ddrun_stacks", ""):
        shown.sections.append(("stacks", page))
    if failed and group.size > 1:
        *place, name = shown.location
        shown.location = *place, f"{name} (rank {lead} of {group.size})"
        if crash := getattr(shown.longrepr, "reprcrash", None):
            crash.message = f"rank {lead}: {crash.message}"
    return own if own[-1].when == "teardown" else [*own, make_report(item, "teardown")]


def failure(item, error):
    """Reports for a test that none of its ranks has ended."""
    message, cause = str(error).partition("\n")[0], getattr(error.__cause__, "args", None)  # of a RemoteTraceback: the text
    if isinstance(error, (RankDied, TimeoutError)):
        text = message
    else:
        text = cause[0] if cause else f"{type(error).__name__}: {error}"
    file, line, _ = item.location
    trace = ReprTraceback([ReprEntryNative([f"{text.rstrip()}\n"])], None, "native")
    longrepr = ReprExceptionInfo(trace, ReprFileLocation(file, (line or 0) + 1, message))
    return [make_report(item, "setup"), make_report(item, "call", longrepr), make_report(item, "teardown")]


def make_report(item, when, longrepr=None):
    outcome = "failed" if longrepr else "passed"
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, longrepr, when)


def read_report(item, data):
    data["nodeid"] = item.nodeid  # to which xdist may have added something
    return item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
