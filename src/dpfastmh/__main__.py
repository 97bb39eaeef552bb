"""``python -m dpfastmh`` is ``dpfastmh``."""

import sys

from dpfastmh.cli import main

sys.exit(main())
