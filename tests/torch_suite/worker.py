"""Runs tests of a file in this process and notes each outcome in a file at once.

    worker.py list RESULTS              notes the names of all tests
    worker.py run torch|feedmill RESULTS NAME...   runs those, in order

A line of RESULTS is a JSON list: ["started", name], then [outcome, name, text]. The text is the
reason of a skip, or the traceback of what went wrong. The environment variable SUITE_MODULE is the
name of the module with the tests, SUITE_CHECKED the names of the classes that must be those of the
given side, as "MODULE.CLASS", separated by spaces.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import unittest
from pathlib import Path

MODULE = os.environ["SUITE_MODULE"]


class _Noting(unittest.TestResult):
    """Writes to a file: a pipe would be kept open by processes that outlive their test."""

    def __init__(self, results: Path) -> None:
        super().__init__()
        self._results = results
        self._outcome, self._texts = "passed", []

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._outcome, self._texts = "passed", []
        note(self._results, "started", _short_name(test))

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        note(self._results, self._outcome, _short_name(test), "\n".join(self._texts))

    def addFailure(self, test, error) -> None:
        self._add("failed", self._exc_info_to_string(error, test))

    def addError(self, test, error) -> None:
        self._add("error", self._exc_info_to_string(error, test))

    def addSubTest(self, test, subtest, error) -> None:
        if error is not None:
            kind = "failed" if issubclass(error[0], test.failureException) else "error"
            self._add(kind, f"{subtest}\n{self._exc_info_to_string(error, test)}")

    def addSkip(self, test, reason: str) -> None:
        self._add("skipped", reason)

    def addExpectedFailure(self, test, error) -> None:
        self._add("expected failure", self._exc_info_to_string(error, test))

    def addUnexpectedSuccess(self, test) -> None:
        self._add("unexpected success", "")

    def _add(self, outcome: str, text: str) -> None:
        # What happens first names the outcome; a skipped part of a test hides no failure of it.
        if self._outcome in ("passed", "skipped"):
            self._outcome = outcome
        self._texts.append(text)


def note(results: Path, *fields: str) -> None:
    with results.open("a") as file:
        file.write(json.dumps(fields) + "\n")


def _all_names() -> list[str]:
    # Class by class: the module's own load_tests() wants it to be the program that runs.
    module = importlib.import_module(MODULE)
    return [
        f"{cls.__name__}.{method}"
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, unittest.TestCase)
        and cls.__module__ == MODULE
        for method in unittest.TestLoader().getTestCaseNames(cls)
    ]


def _short_name(test: unittest.TestCase) -> str:
    return test.id().removeprefix(f"{MODULE}.")


def _check_side(side: str) -> None:
    """The comparison means something only if each side has the class it is named for."""
    for name in os.environ["SUITE_CHECKED"].split():
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
        if (found.__module__.partition(".")[0] == "feedmill") != (side == "feedmill"):
            raise SystemExit(f"{name} is of {found.__module__}, not of {side}")


def main(arguments: list[str]) -> None:
    if arguments[0] == "list":
        for name in _all_names():
            note(Path(arguments[1]), "listed", name)
        return
    _, side, results, *names = arguments
    _check_side(side)
    tests = unittest.TestLoader().loadTestsFromNames([f"{MODULE}.{name}" for name in names])
    tests.run(_Noting(Path(results)))


if __name__ == "__main__":
    main(sys.argv[1:])
