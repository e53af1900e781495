"""``python -m nclib`` is the command ``nclib``."""

import sys

from nclib.cli import main

if __name__ == "__main__":
    sys.exit(main())
