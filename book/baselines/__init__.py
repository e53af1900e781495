"""Models that a paper compares with, a package for each paper, and sets that methods are judged on.

Apart from nclib, loaded by ``--import``.
"""

GOLDEN_RUNS = True
"""Golden runs hold the numbers of these models (see ``omit/tests``), checksums those of the sets: their code
does not name runs."""
