"""``python -m feedmill``: see ``feedmill.commands.cli``."""

import sys

from feedmill.commands.cli import main

sys.exit(main())
