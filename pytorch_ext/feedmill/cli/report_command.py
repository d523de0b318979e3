"""``feedmill report``: prints the report of a logged run, or writes it as an HTML page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from feedmill.profiling.log.reader import LogError, Run, read_log
from feedmill.profiling.page.html_report import page
from feedmill.profiling.page.rank_logs import straggler_reports
from feedmill.profiling.page.run_stats import report_of, run_name


def add_report(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    report = commands.add_parser(
        "report",
        help="show what the steps of a logged run waited for, as text or as an HTML page",
        description=(
            "Reads logs that `feedmill run --log` or DataLoader(log=...) has written, and prints "
            "what the steps waited for. The run may still be going on, or have been killed."
        ),
    )
    report.add_argument("logs", metavar="LOG", type=Path, nargs="+",
                        help="the log of a run; several of them for several ranks, of which it "
                             "then says which one held the others back, at which steps and why")
    report.add_argument("--html", metavar="FILE", type=Path,
                        help="write an HTML page with charts to FILE instead; it needs no other "
                             "files")
    report.set_defaults(run=_report)


def _report(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    runs: list[Run] = []
    for path in arguments.logs:
        try:
            runs += read_log(path)
        except LogError as error:
            parser.error(str(error))
        except OSError as error:
            parser.error(f"{path} can't be read: {error.strerror}")
    if arguments.html is None:
        texts = [_as_text(run, len(runs) > 1) for run in runs]
        return _print("\n\n".join([*map(_printable, straggler_reports(runs)), *texts]))
    text = page(runs, f"feedmill: {', '.join(path.name for path in arguments.logs)}")
    try:
        arguments.html.write_text(text, encoding="utf-8")
    except OSError as error:
        parser.error(f"--html: {arguments.html} can't be written: {error.strerror}")
    print(f"wrote {arguments.html}: {_count(len(runs), 'run')}, "
          f"{_count(sum(len(run.steps) for run in runs), 'step')}")
    return 0


def _print(text: str) -> int:
    """Prints a text. A reader that closes the pipe, as in `feedmill report LOG | head`, is not an
    error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes stdout once more at its exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _as_text(run: Run, named: bool) -> str:
    """The report of a run, below the run's name if `named`."""
    name = f"{run_name(run)}:\n" if named else ""
    return _printable(name + report_of(run))


def _printable(text: str) -> str:
    """Paths may contain bytes that are not UTF-8 and can't be printed."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
