"""``python -m neuroshard_operator``: what the operator's pod runs."""

import sys

from neuroshard_operator.main import main

sys.exit(main())
