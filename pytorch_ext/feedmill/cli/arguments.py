"""What several commands take: numbers and folders."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def from_one(text: str) -> int:
    """The type of an argument."""
    value = int(text) if text.strip().isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return value


def check_readable(folder: Path, parser: argparse.ArgumentParser) -> None:
    """Ends with a message where it is no folder that can be read."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        parser.error(f"{folder} is not a folder that can be read: {error.strerror}")
