"""The models that tests go through, fixed before any test file is read.

These are the models of nclib. ``make test-all`` names the tests of ``book/baselines`` first; their conftest
registers the models there, and then these are gone through as well.
"""

from nclib import models

REGISTERED = tuple(models.available())
