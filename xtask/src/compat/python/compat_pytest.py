"""The plugin for pytest that writes the outcomes of tests."""

import re
import sys

import pytest
from compat_results import reason, record


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    if "sqlalchemy" in sys.modules:
        # It makes two extensions first, which its suite for dialects does not use.
        from sqlalchemy.dialects.postgresql import provision

        provision._extensions.clear()


def pytest_runtest_makereport(item, call):
    # SQLAlchemy adds the version of the server to the names of classes.
    test = re.sub(r"(_postgresql\+\w+?)_[\d_]+(?=::)", r"\1", item.nodeid)
    if call.excinfo is None:
        if call.when == "call":
            record(test, "passed")
    elif call.excinfo.typename == "Skipped":
        record(test, "skipped", str(call.excinfo.value))
    else:
        record(test, "failed", reason(call.excinfo.value))
