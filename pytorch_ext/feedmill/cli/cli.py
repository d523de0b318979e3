"""The command line ``feedmill``. Each command has a file of its own."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from feedmill._ops import __version__
from feedmill.cli.run import split
from feedmill.system.requirements import missing_package

# The commands, in the order of the help. A command's file has the command's name, or the name in
# _FILES. It is imported only when the command is used, as some of the files import torch.
_COMMANDS = ("demo", "bench", "check", "run", "doctor", "index", "pack", "cache", "sweep", "trace",
             "report")
_FILES = {"report": "report_command"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status. Exits with 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="feedmill", description=(
        "A native drop-in replacement for PyTorch's DataLoader, for images. `feedmill demo` shows "
        "what it does; `feedmill COMMAND --help` describes a command."
    ))
    parser.add_argument("--version", action="version", version=f"feedmill {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words, rest = split(sys.argv[1:] if argv is None else argv)
    for name in needed_commands(words):
        try:
            module = importlib.import_module(f"feedmill.cli.{_FILES.get(name, name)}")
        except ModuleNotFoundError as error:
            if text := missing_package(error):
                parser.error(text)
            raise
        getattr(module, f"add_{name}")(commands)
    arguments = parser.parse_args(words, argparse.Namespace(rest=rest))
    try:
        status: int = arguments.run(arguments, parser)
        return status
    except KeyboardInterrupt:
        return 130


def needed_commands(words: Sequence[str]) -> Sequence[str]:
    """The commands that the parser must know to parse a command line. All, if it names none."""
    if words[:1] == ["--version"]:
        return ()
    return words[:1] if words[:1] and words[0] in _COMMANDS else _COMMANDS
