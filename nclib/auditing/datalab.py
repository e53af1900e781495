"""Issue type ``image_caption`` of cleanlab's Datalab. It needs the extra ``datalab``::

nclib.auditing.datalab.register()
lab = cleanlab.Datalab(data={"caption": captions})
lab.find_issues(issue_types={"image_caption": {"images": I, "captions": T}})
lab.get_issues("image_caption")
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from nclib.auditing.belief import WRONG_FROM
from nclib.auditing.steps import Audit, audit
from nclib.common.checks import check_rows
from nclib.common.extras import needed_by

#: Score of a pair that cannot be judged.
UNKNOWN = 0.5


@cache
def register() -> type:
    """Register the issue type ``image_caption``, and return its issue manager.

    The score of an example is 1 - P(wrong), and 0.5 where the pair cannot be judged; an example is an issue
    from P(wrong) = 1/2 on. ``lab.get_info("image_caption")`` has the estimated share of wrong pairs.

    Raises
    ------
    ImportError
        Without the extra ``datalab``.
    """
    with needed_by("the issue type image_caption"):
        from cleanlab.datalab.internal import issue_manager, issue_manager_factory

    class ImageCaptionIssueManager(issue_manager.IssueManager):  # type: ignore[misc, unused-ignore]
        """Issue manager for captions that do not belong to their picture."""

        description: ClassVar[str] = "Examples whose caption probably does not belong to their picture."
        issue_name: ClassVar[str] = "image_caption"
        verbosity_levels: ClassVar[dict[int, list[str]]] = {0: ["share"], 1: ["interval"], 2: ["assumption"]}

        def find_issues(self, audited: Audit | None = None, **options: Any) -> None:
            """Audit the pairs, one an example: ``audited`` already, or by the options of ``nclib.audit``."""
            found = audit(progress=False, **options) if audited is None else audited
            check_rows("the audit", len(found.pairs), **{"examples of the Datalab": len(self.datalab.data)})
            if found.belief.reason:
                raise ValueError(found.assumption)
            p = found.table["p_wrong"].to_numpy()
            score = np.where(np.isnan(p), UNKNOWN, 1 - p)
            flags = {f"is_{self.issue_name}_issue": p >= WRONG_FROM, self.issue_score_key: score}
            self.issues = pd.DataFrame(flags)
            self.summary = self.make_summary(score=float(score.mean()))
            self.info = self.collect_info(found)

        def collect_info(self, found: Audit) -> dict[str, Any]:
            """Return what the audit found besides the scores."""
            return {
                "share": found.share.value,
                "interval": [found.share.low, found.share.high],
                "assumption": found.assumption,
                "warnings": found.warnings,
                **{name: found.table[name].tolist() for name in ("id", "reason", "partner_id")},
            }

    made: type = issue_manager_factory.register(ImageCaptionIssueManager)
    return made
