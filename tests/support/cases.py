"""What tests in Python share, whatever they test. Needs nothing but the standard library."""

import sys
import time
import unittest


def wait_until(condition, seconds=30, what="the condition"):
    """Waits until `condition()` is true, and returns its value; fails after `seconds`. `what`: a text, or what makes it."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain for {what() if callable(what) else what}")
        time.sleep(0.01)


def main():
    """Runs the tests of the calling module; what was skipped is said in the words that scripts/test looks for."""
    class Outcome(unittest.TextTestResult):
        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            # One that cannot run at all is CTest's business; a part of it that is left out is only named.
            print(f"\nleft out: {test}: {reason}", file=sys.stderr)

    program = unittest.main(module="__main__", exit=False, verbosity=2,
                            testRunner=unittest.TextTestRunner(resultclass=Outcome, verbosity=2, stream=sys.stderr))
    outcome = program.result
    if outcome.wasSuccessful() and outcome.skipped and len(outcome.skipped) >= max(1, outcome.testsRun):
        print(f"SKIPPED: {outcome.skipped[0][1]}")
    sys.exit(0 if outcome.wasSuccessful() else 1)
