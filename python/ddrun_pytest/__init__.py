"""pytest's plugin: a test that is marked with `ranks` runs on the ranks of a job. Other tests import nothing of it."""

import os

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("ddrun", "tests on ranks, by @pytest.mark.ranks(4)")
    group.addoption("--ranks-preload", metavar="MODULES", default="",
                    help="import these once for all ranks, separated by commas: torch")
    group.addoption("--ranks-timeout", metavar="SECONDS", type=float, default=300.0,
                    help="fail a test on ranks after this time, with a page of stacks (default: 300)")


def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(number, backend=None): run this test on so many ranks, which ddrun starts; "
                            "backend='gloo' makes torch's process group for it")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if item.get_closest_marker("ranks") and not item.config.pluginmanager.has_plugin("ddrun_rank"):
        from ddrun._pytest import run_test

        return run_test(item, nextitem)


@pytest.fixture
def rank():
    """The number of this process among those of a test that is marked with `ranks`; 0 in another test."""
    return int(os.environ.get("RANK", 0))
