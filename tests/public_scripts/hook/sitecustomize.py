"""Imported at the start of each Python process of a recorded script, by way of PYTHONPATH."""

import sys
from pathlib import Path

import loader_record

loader_record.install_on_import()
sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
