"""Checks of arguments that several commands take: numbers and folders."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def positive_int(text: str) -> int:
    """An argparse type: a whole number that is at least 1."""
    value = int(text) if text.strip().isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def check_readable(folder: Path, parser: argparse.ArgumentParser) -> None:
    """Exits with a usage error if the path is not a folder, or can't be read."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        parser.error(f"{folder} is not a folder that can be read: {error.strerror}")
