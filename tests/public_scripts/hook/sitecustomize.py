"""Imported at the start of each Python process of a recorded script, by way of PYTHONPATH."""

import sys
from pathlib import Path

from public_scripts_hook.record import install

install()
sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
