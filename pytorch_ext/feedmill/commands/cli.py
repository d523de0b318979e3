"""The command line ``feedmill``; what it does is in a file for each of its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from feedmill._ops import __version__
from feedmill.commands.bench import add_bench
from feedmill.commands.check import add_check
from feedmill.commands.doctor import add_doctor
from feedmill.commands.pack import add_pack
from feedmill.commands.report_command import add_report
from feedmill.commands.run import add_run, split
from feedmill.commands.sweep import add_sweep
from feedmill.commands.trace import add_trace


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status. Bad usage exits with 2."""
    parser = argparse.ArgumentParser(prog="feedmill", description="A native loader of images.")
    parser.add_argument("--version", action="version", version=f"feedmill {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_bench(commands)
    add_check(commands)
    add_run(commands)
    add_doctor(commands)
    add_pack(commands)
    add_sweep(commands)
    add_trace(commands)
    add_report(commands)
    words, rest = split(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(words, argparse.Namespace(rest=rest))
    try:
        return arguments.run(arguments, parser)
    except KeyboardInterrupt:
        return 130
