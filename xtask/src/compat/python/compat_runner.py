"""The runner of Django's tests that writes their outcomes."""

import unittest

from compat_results import reason, record
from django.test.runner import DiscoverRunner


class Result(unittest.TextTestResult):
    def addSuccess(self, test):
        super().addSuccess(test)
        record(test.id(), "passed")

    def addError(self, test, error):
        super().addError(test, error)
        record(test.id(), "failed", reason(error[1]))

    def addFailure(self, test, error):
        super().addFailure(test, error)
        record(test.id(), "failed", reason(error[1]))

    def addSkip(self, test, why):
        super().addSkip(test, why)
        record(test.id(), "skipped", why)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            record(test.id(), "failed", reason(error[1]))


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result
