"""`python -m haaw`: the same as the `haaw` command."""

import sys

from haaw.cli.main import main

sys.exit(main())
