"""The audit of pairs: table, share, bad input."""

from __future__ import annotations

import numpy as np
import pytest

import nclib
from nclib.audit import Audit
from nclib.audit.result import COLUMNS


def made(n=400, wrong=80, d=32, noise=0.8, seed=0):
    """Embeddings of n pairs; the captions of the first ``wrong`` rows are exchanged in a cycle."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(n, d)).astype(np.float32)
    captions = (images + noise * rng.normal(size=(n, d))).astype(np.float32)
    order = np.arange(n)
    order[:wrong] = np.roll(order[:wrong], 7)
    return images, captions[order], order


def test_wrong_pairs_come_first_and_the_table_has_all_columns():
    images, captions, order = made()
    audit = nclib.audit(images=images, captions=captions, progress=False)
    assert isinstance(audit, Audit)
    assert list(audit.table.columns) == COLUMNS
    first = audit.table.sort_values("rank").head(80).index
    assert (order[first] != first).mean() > 0.95
    assert abs(audit.share.value - 0.2) < 0.06


def test_as_many_images_as_captions_unless_image_of_says_more():
    images, captions, _ = made(n=40, wrong=0)
    with pytest.raises(ValueError, match=r"give image_of.*// 2"):
        nclib.audit(images=images[:20], captions=captions, progress=False)
