"""`python -m loopwise`."""

import sys

from loopwise.cli.main import main

sys.exit(main())
