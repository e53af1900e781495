"""nclib: image-text retrieval when part of the pairs is wrong.

Solvers (:mod:`nclib.ot`), noise (:mod:`nclib.noise`), losses, models, methods, data and one training loop.
``nclib.run(method="l2rm", mrate=0.6)`` trains one method on the bundled data and returns its record.
"""

from __future__ import annotations

__version__ = "0.1.0"
