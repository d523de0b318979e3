"""``python -m feedmill``: see ``feedmill.cli``."""

import sys

from feedmill.cli import main

sys.exit(main())
