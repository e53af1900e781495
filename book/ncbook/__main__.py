"""``python -m ncbook`` is the command ``ncbook``."""

import sys

from ncbook.cli import main

if __name__ == "__main__":
    sys.exit(main())
