"""``feedmill run``: runs an unchanged script with feedmill's DataLoader (with --watch, torch's) and
reports its waits.

This process is replaced (exec) by a Python process that runs the script. The folder ``_site`` comes
first on its PYTHONPATH: the sitecustomize module there waits until torch is imported, and then
calls ``injected``. Processes that the script starts inherit this environment.
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
_OPTIONS = ("native", "seed", "rng", "threads", "deferred")
_TAKES_VALUE = ("--report", "--log", "--native", "--seed", "--rng", "--threads", "--deferred")
_SCRIPT_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz")

_DESCRIPTION = """\
Runs a training script like `python SCRIPT ARGUMENTS`, but with feedmill's DataLoader in place of
torch's. This includes loaders made by libraries and in processes that the script starts. Loaders
that feedmill can't run natively run as torch's do. With --watch all loaders stay torch's, and only
their waits are counted.

When a process that used loaders ends, it prints to stderr what their steps waited for: one report
for each line of the script that made loaders. If a library made several loaders during one line,
as for training and validation, each combination of dataset and order has its own report. A process
that is killed prints no report.
"""

_EPILOG = """\
In place of SCRIPT:
  -m MODULE     run a module, like `python -m MODULE`
  -c CODE       run code, like `python -c CODE`
  -             run the code on standard input, like `python -`
  COMMAND       run a command on PATH, such as torchrun, accelerate or python; this affects all
                Python processes that it starts. A path counts as a command if it is executable and
                does not end in .py.

feedmill's options come before SCRIPT; everything after it belongs to the script. Python processes
that are started with -I, -E or -S, or without this PYTHONPATH, are not affected.

examples:
  feedmill run train.py --epochs 90
  feedmill run --watch train.py --epochs 1
  feedmill run --seed 7 --report waits.jsonl torchrun --nproc-per-node 8 train.py
"""


def add_run(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    run = commands.add_parser(
        "run",
        help="run an unchanged training script with feedmill, and report what it waited for",
        usage="feedmill run [options] SCRIPT [ARGUMENTS ...]\n"
              "       feedmill run [options] -m MODULE [ARGUMENTS ...]\n"
              "       feedmill run [options] COMMAND [ARGUMENTS ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument("--watch", action="store_true",
                     help="keep torch's DataLoader, and only count its waits")
    run.add_argument("--quiet", action="store_true", help="do not print reports")
    run.add_argument("--report", metavar="FILE",
                     help="append the reports to FILE instead of printing them: a JSON object per "
                          "line, for each line of the script that made loaders")
    run.add_argument("--log", metavar="FILE",
                     help="append a record of every step of every loader to FILE, as JSON lines; "
                          "{pid} and {rank} in the name are replaced")
    run.add_argument("--log-samples", action="store_true",
                     help="also record every sample in the log, for `feedmill trace`; needs --log")
    run.add_argument("--native", choices=("auto", "hybrid", "verify", "require", "off"),
                     help="default of DataLoader's native= (otherwise auto)")
    run.add_argument("--seed", type=int, metavar="N",
                     help="default of DataLoader's seed= (otherwise torch's random numbers)")
    run.add_argument("--rng", choices=("auto", "feedmill", "torch"),
                     help="default of DataLoader's rng= (otherwise auto: batches are those of "
                          "torch's DataLoader, random augmentations included, unless a seed is "
                          "given)")
    run.add_argument("--threads", type=_threads, metavar="N",
                     help="default of DataLoader's threads= (otherwise as num_workers)")
    run.add_argument("--deferred", choices=("auto", "off", "verify"),
                     help="default of DataLoader's deferred= (otherwise auto)")
    run.set_defaults(run=_run)


def _threads(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= _MAX_THREADS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from 1 to {_MAX_THREADS}"
        )
    return value


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the command line into (feedmill's part, the script and its arguments)."""
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
    # Python ignores these signals, and exec() keeps them ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        parser.error(f"{command[0]} can't be run: {error.strerror}")


def _command(rest: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    if not rest:
        parser.error("there is nothing to run: name a script, -m and a module, or a command")
    first = rest[0]
    if first in ("-m", "-c") and len(rest) == 1:
        parser.error(f"{first} needs {'a module' if first == '-m' else 'code'} after it")
    if first in ("-", "-m", "-c") or _is_script(first):
        return [sys.executable, *rest]
    if shutil.which(first) is None:
        parser.error(f"{first} is neither a script in this folder nor a command on PATH")
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
    # An empty entry would mean the current folder.
    environment["PYTHONPATH"] = _SITE + (os.pathsep + others if others else "")
    if arguments.rng == "torch" and arguments.seed is not None:
        parser.error("--seed keys feedmill's own random numbers, and --rng torch takes torch's: "
                     "leave one of them out")
    environment["FEEDMILL_RUN"] = "watch" if arguments.watch else "replace"
    for name in _OPTIONS:
        value = getattr(arguments, name)
        if value is not None:
            if arguments.watch:
                parser.error(f"--{name} is an option of feedmill's DataLoader, but --watch keeps "
                             "torch's: leave one of them out")
            environment[f"FEEDMILL_RUN_{name.upper()}"] = str(value)
    if arguments.quiet:
        environment["FEEDMILL_RUN_QUIET"] = "1"
    if arguments.report is not None:
        environment["FEEDMILL_RUN_REPORT"] = _writable("--report", arguments.report, parser)
    if arguments.log is not None:
        environment["FEEDMILL_LOG"] = _log_file(arguments.log, parser)
    if arguments.log_samples:
        if "FEEDMILL_LOG" not in environment:
            parser.error("--log-samples needs a log: name one with --log")
        environment["FEEDMILL_LOG_SAMPLES"] = "1"
    return environment


def _writable(option: str, name: str, parser: argparse.ArgumentParser) -> str:
    """The file's absolute path, as the script may change the folder. Makes the file if need be."""
    try:
        with open(name, "ab"):
            pass
    except OSError as error:
        parser.error(f"{option}: {name} can't be written: {error.strerror}")
    return os.path.abspath(name)


def _log_file(name: str, parser: argparse.ArgumentParser) -> str:
    if "{pid}" not in name and "{rank}" not in name:
        return _writable("--log", name, parser)
    path = os.path.abspath(name)
    if not os.path.isdir(os.path.dirname(path)):
        parser.error(f"--log: there is no folder {os.path.dirname(path)}")
    return path
