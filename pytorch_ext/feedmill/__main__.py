"""``python -m feedmill``: see ``feedmill.cli.cli``."""

import sys

from feedmill.cli.cli import main

sys.exit(main())
