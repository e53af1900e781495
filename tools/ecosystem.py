"""Try the audit with what the tests do without: cleanlab's Datalab, datasets, and the extra ``pictures``.

    make ecosystem

An empty environment in a temporary folder gets the wheel with its extras ``datalab`` and ``pictures``, and runs
``tools/ecosystem_tests.py``. Where all are installed, ``pytest tools/ecosystem_tests.py`` does the
same in seconds. torch alone takes up to 3 GB.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from versions import ROOT, FailedError, run, wheel


def main() -> int:
    """Print the last line of the tests; return 0 when they pass."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        python = folder / "venv/bin/python"
        try:
            built = wheel(folder)
            run(sys.executable, "-m", "venv", "venv", at=folder)
            run(python, "-m", "pip", "install", "-q", f"{built}[datalab,pictures]", "pytest", at=folder)
            shutil.copy(ROOT / "tools/ecosystem_tests.py", folder)
            said = run(python, "-m", "pytest", "-q", "ecosystem_tests.py", at=folder)
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
    print(said.splitlines()[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
