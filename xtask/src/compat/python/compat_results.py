"""Writes the outcome of each test as a line of JSON."""

import json
import os

OUTPUT = open(os.environ["COMPAT_RESULTS"], "a", encoding="utf-8")


def record(test, outcome, reason=""):
    """Writes a line at once, so a run that is ended leaves the outcomes so far."""
    line = {"test": test, "outcome": outcome, "reason": reason}
    OUTPUT.write(json.dumps(line) + "\n")
    OUTPUT.flush()


def reason(error):
    """Returns the line of the error, without the statement that SQLAlchemy and Django add."""
    lines = [line for line in str(error).split("\n") if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
