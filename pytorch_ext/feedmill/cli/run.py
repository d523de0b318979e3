"""``feedmill run``: an unchanged script with feedmill's DataLoader, or with its own and a report.

The script runs in a Python process of its own, which takes the place of this one. A folder of ours
comes first on its PYTHONPATH, and with it a sitecustomize module that waits for torch to be
imported (``_site``); the processes that the script starts inherit both. What happens then is in
``injected``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_SITE = str(Path(__file__).resolve().parent / "_site")
_MAX_THREADS = 1024
_OPTIONS = ("native", "seed", "threads")
_TAKES_VALUE = ("--report", "--log", "--native", "--seed", "--threads")
_SCRIPT_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz")

_DESCRIPTION = """\
Runs a training script as `python SCRIPT ARGUMENTS` would, but for one thing: torch's DataLoader is
feedmill's, also inside libraries that make loaders themselves, and in processes that the script
starts. What feedmill can't do natively takes torch's own path. With --watch the loader stays
torch's, and its waits are counted.

When a process that iterated over loaders ends, it reports on stderr what their steps waited for,
one report for each line of the script that made loaders. Where a library makes several while one
line runs, as for training and validation, each dataset and order of samples has a report of its
own. A process that is killed does not report.
"""

_EPILOG = """\
In place of SCRIPT:
  -m MODULE     a module, as `python -m MODULE`
  -c CODE       code, as `python -c CODE`
  -             the standard input, as `python -`
  COMMAND       a command on PATH, such as torchrun, accelerate or python, with the same effect on
                every Python process below it. A path is a command if it is executable and has no
                suffix .py.

Everything behind SCRIPT, MODULE, CODE or COMMAND is its own. Python processes started with -I, -E
or -S, or without this PYTHONPATH, are left alone.

examples:
  feedmill run train.py --epochs 90
  feedmill run --watch train.py --epochs 1
  feedmill run --seed 7 --report waits.jsonl torchrun --nproc-per-node 8 train.py
"""


def add_run(commands: Any) -> None:
    """Registers the command at an argparse parser's subparsers."""
    run = commands.add_parser(
        "run",
        help="run an unchanged training script, and report what its steps waited for",
        usage="feedmill run [options] SCRIPT [ARGUMENTS ...]\n"
              "       feedmill run [options] -m MODULE [ARGUMENTS ...]\n"
              "       feedmill run [options] COMMAND [ARGUMENTS ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument("--watch", action="store_true",
                     help="leave torch's DataLoader in its place, and only count its waits")
    run.add_argument("--quiet", action="store_true", help="print no report")
    run.add_argument("--report", metavar="FILE",
                     help="append the report to FILE, one JSON object a line and loader line, "
                          "instead of printing it")
    run.add_argument("--log", metavar="FILE",
                     help="append every step of every loader to FILE, as JSON lines; {pid} and "
                          "{rank} in its name are replaced")
    run.add_argument("--log-samples", action="store_true",
                     help="... and every sample, for `feedmill trace`")
    run.add_argument("--native", choices=("auto", "hybrid", "verify", "require", "off"),
                     help="DataLoader's native= where the script gives none (default auto)")
    run.add_argument("--seed", type=int, metavar="N",
                     help="DataLoader's seed= where the script gives none (default: torch's)")
    run.add_argument("--threads", type=_threads, metavar="N",
                     help="DataLoader's threads= where the script gives none (default: as "
                          "num_workers)")
    run.set_defaults(run=_run)


def _threads(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= _MAX_THREADS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from 1 to {_MAX_THREADS}"
        )
    return value


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides the command line: (what is feedmill's, what begins with the script)."""
    words = list(words)
    if words[:1] != ["run"]:
        return words, []
    at = 1
    while at < len(words):
        word = words[at]
        if word == "--":
            return words[:at], words[at + 1 :]
        if not word.startswith("-") or word in ("-", "-m", "-c"):
            break
        at += 2 if word in _TAKES_VALUE else 1
    return words[:at], words[at:]


def _run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> NoReturn:
    command = _command(arguments.rest, parser)
    environment = _environment(arguments, parser)
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these, and a program inherits what is ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        parser.error(f"{command[0]} can't be run: {error.strerror}")


def _command(rest: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    if not rest:
        parser.error("what is to be run? Name a script, -m and a module, or a command")
    first = rest[0]
    if first in ("-m", "-c") and len(rest) == 1:
        parser.error(f"{first} needs {'a module' if first == '-m' else 'code'} behind it")
    if first in ("-", "-m", "-c") or _is_script(first):
        return [sys.executable, *rest]
    if shutil.which(first) is None:
        parser.error(f"{first} is no script here, and no command on PATH")
    return list(rest)


def _is_script(name: str) -> bool:
    if name.endswith(_SCRIPT_SUFFIXES) or os.path.isdir(name):
        return True
    return os.path.isfile(name) and shutil.which(name) is None


def _environment(
    arguments: argparse.Namespace, parser: argparse.ArgumentParser
) -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FEEDMILL_RUN")
    }
    others = environment.get("PYTHONPATH")
    # An empty entry would be the current folder.
    environment["PYTHONPATH"] = _SITE + (os.pathsep + others if others else "")
    environment["FEEDMILL_RUN"] = "watch" if arguments.watch else "replace"
    for name in _OPTIONS:
        value = getattr(arguments, name)
        if value is not None:
            if arguments.watch:
                parser.error(f"--{name} is for feedmill's DataLoader; with --watch it is torch's")
            environment[f"FEEDMILL_RUN_{name.upper()}"] = str(value)
    if arguments.quiet:
        environment["FEEDMILL_RUN_QUIET"] = "1"
    if arguments.report is not None:
        environment["FEEDMILL_RUN_REPORT"] = _writable("--report", arguments.report, parser)
    if arguments.log is not None:
        environment["FEEDMILL_LOG"] = _log_file(arguments.log, parser)
    if arguments.log_samples:
        if "FEEDMILL_LOG" not in environment:
            parser.error("--log-samples: there is no log for them; name one with --log")
        environment["FEEDMILL_LOG_SAMPLES"] = "1"
    return environment


def _writable(option: str, name: str, parser: argparse.ArgumentParser) -> str:
    """The file's absolute path: the script may change the folder. It is made, if need be."""
    try:
        with open(name, "ab"):
            pass
    except OSError as error:
        parser.error(f"{option}: {name} can't be written to: {error.strerror}")
    return os.path.abspath(name)


def _log_file(name: str, parser: argparse.ArgumentParser) -> str:
    if "{pid}" not in name and "{rank}" not in name:
        return _writable("--log", name, parser)
    path = os.path.abspath(name)
    if not os.path.isdir(os.path.dirname(path)):
        parser.error(f"--log: there is no folder {os.path.dirname(path)}")
    return path
