"""Runs rdma-core's tests of pyverbs. Prints a line for each: its name, `pass`, `skip` or `fail`, and the reason.

usage: run_pyverbs.py FOLDER ARGUMENTS       FOLDER has the package `tests`; ARGUMENTS are those of its run_tests.py
"""

import sys
import unittest
from importlib.machinery import SourceFileLoader

# What needs a device of these vendors.
OTHER_DEVICES = ("tests.test_mlx5", "tests.test_efa", "tests.test_cuda")


class Lines(unittest.TestResult):
    def line(self, test, status, reason=""):
        # A class that is skipped has the name of its method in brackets.
        print(test.id(), status, " ".join(str(reason).split()), flush=True)

    def addSuccess(self, test):
        self.line(test, "pass")

    def addSkip(self, test, reason):
        self.line(test, "skip", reason)

    def addError(self, test, err):
        self.line(test, "fail", err[1])

    def addFailure(self, test, err):
        self.line(test, "fail", err[1])


def of_any_device(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from of_any_device(each)
        elif not each.id().startswith(OTHER_DEVICES):
            yield each


folder = sys.argv.pop(1)
sys.path[:0] = [folder + "/tests", folder]
from args_parser import parser  # noqa: E402

tests = SourceFileLoader("tests", folder + "/tests/__init__.py").load_module()
parser.parse_args()
suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
unittest.TestSuite(of_any_device(suite)).run(Lines())
