"""The command line ``feedmill``; what it does is in a file for each of its commands."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from feedmill._ops import __version__
from feedmill.cli.run import split

# Each in the file of its name. Imported when it is asked for: with some of them comes torch.
_COMMANDS = ("demo", "bench", "check", "run", "doctor", "pack", "sweep", "trace", "report")
_FILES = {"report": "report_command"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status. Bad usage exits with 2."""
    parser = argparse.ArgumentParser(prog="feedmill", description="A native loader of images.")
    parser.add_argument("--version", action="version", version=f"feedmill {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words, rest = split(sys.argv[1:] if argv is None else argv)
    for name in asked_for(words):
        module = importlib.import_module(f"feedmill.cli.{_FILES.get(name, name)}")
        getattr(module, f"add_{name}")(commands)
    arguments = parser.parse_args(words, argparse.Namespace(rest=rest))
    try:
        status: int = arguments.run(arguments, parser)
        return status
    except KeyboardInterrupt:
        return 130


def asked_for(words: Sequence[str]) -> Sequence[str]:
    """The commands that the parser must know for a command line: all, where it names none."""
    if words[:1] == ["--version"]:
        return ()
    return words[:1] if words[:1] and words[0] in _COMMANDS else _COMMANDS
