"""Entry point of ``python -m nclib``, the same as the command ``nclib``."""

import sys

from nclib.cli import main

if __name__ == "__main__":
    sys.exit(main())
