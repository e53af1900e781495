"""Models that a paper compares with, apart from nclib: a package for each paper, loaded by ``--import``."""

GOLDEN_RUNS = True
"""Golden runs hold the numbers of these models, see ``omit/tests``: their code does not name runs."""
