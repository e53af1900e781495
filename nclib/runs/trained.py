"""Trained models: a finished run as an object that scores and searches."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from nclib.common.checks import check_squares
from nclib.common.row_writer import some
from nclib.data import Vocabulary
from nclib.data.dataset import Captions
from nclib.models import Matcher
from nclib.runs.loop import epoch_arrays
from nclib.runs.pairs import PairExperiment
from nclib.runs.record import Record

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]


@dataclass
class TrainedModel:
    """The networks of a finished run on pairs, with what they need to read captions.

    Parameters
    ----------
    networks : list of Matcher
        In evaluation mode; scores are the mean of their similarities.
    vocabulary : Vocabulary
    images : ndarray, (N, R, F), optional
        Pictures that :meth:`search` looks through: the test split of the run.
    captions : list of str, optional
        The first caption of each of these pictures.
    names : list of str, optional
        Their names, which the data set ``own`` knows.
    matched : DataFrame, optional
        Behind :meth:`pairs`.
    """

    networks: list[Matcher]
    vocabulary: Vocabulary
    images: Any = None
    captions: list[str] | None = None
    names: list[str] | None = None
    matched: pd.DataFrame | None = None

    @torch.inference_mode()
    def score(self, images: Any, captions: str | Sequence[str]) -> Array:
        """Return the similarities of all pictures with all captions, float32 (pictures, captions).

        ``images`` are region features (pictures, R, F), as the model was trained on; captions are sentences.
        A ValueError where ``images`` are anything else, or the vocabulary has no word of a caption; a warning
        names other words that it lacks.
        """
        texts = [captions] if isinstance(captions, str) else list(captions)
        x = torch.tensor(np.asarray(images), dtype=torch.float32)
        check_squares("images, row", x.numpy())
        packed = Captions(*self.vocabulary.encode_all(texts), self.vocabulary)
        self._check_words(texts, packed)
        tokens = packed.batch(np.arange(len(texts)))
        total = torch.zeros(len(x), len(texts))
        for network in self.networks:
            encoded = network.encode_captions(tokens.to(network.device))
            for first in range(0, len(x), 256):
                seen = network.encode_images(x[first : first + 256].to(network.device))
                total[first : first + 256] += network.similarity(seen, encoded).float().cpu()
        return (total / len(self.networks)).numpy()

    def search(self, text: str, images: Any = None, k: int = 10) -> pd.DataFrame:
        """Return the ``k`` pictures that fit a sentence best: columns ``image``, a row number, and ``score``.

        Without ``images`` those of the run's test split are searched, and a column ``caption`` has the first
        caption of each, ``picture`` its name where the data set knows it. A ValueError where there are no
        pictures; errors and warnings about words as of :meth:`score`.
        """
        import pandas as pd

        known = {"picture": self.names, "caption": self.captions} if images is None else {}
        images = self.images if images is None else images
        if images is None:
            raise ValueError("there are no pictures to search; give images, (pictures, regions, numbers)")
        score = self.score(images, text)[:, 0]
        best = np.argsort(-score, kind="stable")[:k]
        more = {name: [v[row] for row in best] for name, v in known.items() if v is not None}
        return pd.DataFrame({"image": best, "score": score[best], **more})

    def _check_words(self, texts: Sequence[str], captions: Captions) -> None:
        """Refuse a caption of which the vocabulary has no word; warn of other words that it lacks."""
        words = self.vocabulary
        known, of = captions.coverage()
        if unread := int((known == 0).sum()):
            row = int(np.argmin(known))
            raise ValueError(
                f"the model's vocabulary, {int(words.is_word.sum()):,} words of the training captions, has "
                f"no word of {texts[row]!r}; take words of these captions (caption {row}; {unread:,} of "
                f"{len(texts):,} are so)"
            )
        if unknown := int(of.sum() - known.sum()):
            names = dict.fromkeys(word for text in texts for word in words.unknown(text))
            warnings.warn(
                f"not in the model's vocabulary: {some(map(repr, names))}; each is read "
                f"as the same unknown word ({unknown / of.sum():.0%} of all words)",
                UserWarning,
                stacklevel=3,
            )

    def pairs(self) -> pd.DataFrame:
        """Return the probability of being matched of every training pair, as the run's last epoch had it.

        Columns ``caption`` and ``image``, row numbers of the training split, ``p_clean``, ``picture``, its
        name where the data set knows it, and ``text``, the caption. A ValueError where the method keeps no
        such probability.
        """
        if self.matched is None:
            raise ValueError("the method of this run keeps no probability of its pairs")
        return self.matched


def load(source: Record | str | PathLike[str], device: str = "cpu") -> TrainedModel:
    """Load a finished run on pairs.

    Parameters
    ----------
    source : Record or path
        A record, or the folder of its run.
    device : str
        ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...

    Returns
    -------
    TrainedModel

    Raises
    ------
    FileNotFoundError, ValueError
        When the folder holds no run, the run was on labels, or a file is damaged, missing, or another one.
    """
    import pandas as pd

    record = source if isinstance(source, Record) else Record.load(Path(source).expanduser() / "record.json")
    if record.task != "pairs":
        raise ValueError(f"{record.name} is a run on labels; only runs on pairs load as a model")
    runs = [record]
    if record.settings.get("networks", 1) > 1:  # each stands in a run of its own beside the record
        beside = Path(record.folder).parent
        runs = [Record.load(beside / name / "record.json") for name in record.parts]
    loaded = [PairExperiment(record.settings["method"]).open_run(run, device) for run in runs]
    data, matched = loaded[0].dataset, None
    if p_clean := [p for run in runs for p in _probabilities(run.folder)]:
        of, names = loaded[0].noise.image_of, data.train.details.get("pictures")
        matched = pd.DataFrame({"caption": range(len(of)), "image": of, "p_clean": np.mean(p_clean, axis=0)})
        if names is not None:
            matched["picture"] = [names[row] for row in of]
        matched["text"] = [data.train.captions.text(i) for i in range(len(of))]
    test = data.test
    return TrainedModel(
        [network for one in loaded for network in one.trainer.networks],
        data.vocabulary,
        test.images[:],
        [test.captions.text(row * test.captions_per_image) for row in range(test.n_images)],
        test.details.get("pictures"),
        matched,
    )


def _probabilities(folder: str) -> list[Array]:
    """Return the probabilities of the pairs by each network, of the last epoch that kept them."""
    kept = epoch_arrays(folder)
    last = next((kept[e] for e in sorted(kept, reverse=True) if "p_clean" in kept[e]), {})
    return [last[name] for name in ("p_clean", "p_clean_b") if name in last]
