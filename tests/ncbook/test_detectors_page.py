"""The chapter on finding wrong pairs: its figure and sentence against records whose values are known."""

import numpy as np
import pandas as pd
import pytest
from ncbook.chapters import detectors

from nclib.noise import GaussianMixture1d, auc


@pytest.fixture
def runs() -> pd.DataFrame:
    rows = [
        ("plain (gce)", "images", 0.6, 0.90, None, None),
        ("plain (gce)", "images", 0.6, 0.92, None, None),
        ("repair", "images", 0.6, 0.80, 0.79, 0.75),
        ("crank", "images", 0.6, 0.91, 0.93, None),
        ("crank", "captions", 0.6, 0.5, 0.5, None),
        ("crank", "images", 0.0, 0.5, 0.5, None),
    ]
    return pd.DataFrame(rows, columns=["label", "protocol", "mrate", "detection.auc", "auc", "rc_auc"])


def test_each_signal_has_the_mean_of_its_own_column(runs: pd.DataFrame) -> None:
    found = detectors.points(runs)[0.6].drop("the audit")
    assert found.to_dict() == pytest.approx(
        {
            "low similarity, after generalised cross entropy": 0.91,
            "counted, then ranked (CRANK)": 0.93,
            "rank correlation with a bank (REPAIR)": 0.75,
        }
    )
    (left, right) = detectors.all_detectors(runs).axes
    assert [label.get_text() for label in right.get_yticklabels()] == ["repair", "crank"]
    assert len(left.lines) == 4
    assert detectors.all_detectors(runs[:0]) is None


def test_the_sentence_counts_methods_whose_similarity_finds_at_least_as_much(runs: pd.DataFrame) -> None:
    said = detectors.said(runs, 0.6)
    assert "AUROC of 0.80 to 0.91" in said
    assert "for 1 of 2 methods" in said
    assert detectors.said(runs, 0.4) == "No recorded runs here."


def test_made_losses_have_the_share_and_the_overlap_asked_for() -> None:
    near, far = (detectors.made_losses(0.3, overlap) for overlap in (2.0, 0.5))
    assert np.mean(near[1]) == pytest.approx(0.7, abs=0.03)
    assert auc(-near[0], near[1]) < auc(-far[0], far[1])
    p_clean = GaussianMixture1d().fit(far[0]).predict_proba(far[0])[:, 0]
    assert auc(p_clean, far[1]) > 0.98
