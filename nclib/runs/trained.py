"""Trained models: a finished run as an object that scores, searches, and is saved as one folder."""

from __future__ import annotations

import json
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
from nclib.common.files import write_atomically
from nclib.common.options import make
from nclib.common.version import VERSION
from nclib.data import Vocabulary
from nclib.data.dataset import Captions
from nclib.data.tokeniser import tokenise
from nclib.methods.base import METHODS
from nclib.models import Matcher, build
from nclib.runs import checkpoint
from nclib.runs.digests import check_folder, settle, together
from nclib.runs.identity import without_removed
from nclib.runs.loop import epoch_arrays
from nclib.runs.machine import choose_device
from nclib.runs.pairs import PairExperiment, sizes_of
from nclib.runs.record import Record

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
WEIGHTS, SETTINGS, WORDS, CARD, PAIRS = FILES = (
    "model.safetensors",
    "settings.json",
    "vocabulary.json",
    "README.md",
    "pairs.csv",
)
SHOWN = 10  # unknown words that a warning names


@dataclass
class TrainedModel:
    """The networks of a finished run on pairs, with what they need to read captions.

    Parameters
    ----------
    networks : list of Matcher
        In evaluation mode; scores are the mean of their similarities.
    vocabulary : Vocabulary
    settings : dict
        ``method``, ``method_options``, ``model``, ``model_options``, ``sizes``, and the facts of the card.
    images : ndarray, (N, R, F), optional
        Pictures that :meth:`search` looks through: the test split of the run.
    told : list of str, optional
        The first caption of each of these pictures.
    names : list of str, optional
        Their names, which the data set ``own`` knows.
    matched : DataFrame, optional
        Behind :meth:`pairs`.
    """

    networks: list[Matcher]
    vocabulary: Vocabulary
    settings: dict[str, Any]
    images: Any = None
    told: list[str] | None = None
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
        found, width = np.asarray(images), self.settings["sizes"]["feature_dim"]
        if found.dtype.kind not in "fiu" or found.ndim != 3 or found.shape[2] != width:
            raise ValueError(
                f"images must be features, (pictures, regions, {width}), made as those that the model was "
                f"trained on; got {found.dtype} of shape {found.shape}"
            )
        x = torch.tensor(found, dtype=torch.float32)
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

        known = {"picture": self.names, "caption": self.told} if images is None else {}
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
            names = list(dict.fromkeys(word for text in texts for word in words.unknown(text)))
            more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
            warnings.warn(
                f"not in the model's vocabulary: {', '.join(map(repr, names[:SHOWN]))}{more}; each is read "
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
            raise ValueError(f"the method {self.settings['method']!r} keeps no probability of its pairs")
        return self.matched

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write weights (safetensors), settings, vocabulary, pairs and a card into a folder; return it.

        ``SHA256SUMS`` lists their digests, as ``sha256sum -c`` reads them; :func:`nclib.load` checks them.
        A model that was saved there before is replaced as a whole, or not at all.
        """
        folder = Path(folder)
        with together(folder, whole=True) as new:
            checkpoint.save(new / WEIGHTS, {"networks": [net.state_dict() for net in self.networks]})
            self.vocabulary.to_json(new / WORDS)
            write_atomically(new / SETTINGS, json.dumps(self.settings, indent=1))
            if self.matched is not None:
                write_atomically(new / PAIRS, self.matched.to_csv(index=False))
            write_atomically(new / CARD, self._card())
        return folder

    def _card(self) -> str:
        s = self.settings
        facts = "\n".join(f"- {name}: {value}" for name, value in s["facts"].items())
        how = 'import nclib\n\nmodel = nclib.load("this folder")\nmodel.score(region_features, ["a caption"])'
        return (
            f"# {s['model']} trained by {s['method']}\n\nAn image-text retrieval model, made with nclib "
            f"{s['nclib']}.\n\n{facts}\n\nThe recalls are those of the epoch that validation selected, on "
            f"the test split of the data above.\n\n```python\n{how}\n```\n"
        )


def load(source: Record | str | PathLike[str], device: str = "cpu") -> TrainedModel:
    """Load a finished run on pairs, or a folder that :meth:`TrainedModel.save` wrote.

    Parameters
    ----------
    source : Record or path
        A record, its folder, or a saved folder.
    device : str
        ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...

    Returns
    -------
    TrainedModel

    Raises
    ------
    FileNotFoundError, ValueError
        When the folder holds neither, the run was on labels, or a file is damaged, missing, or not the one
        that was saved.
    """
    if isinstance(source, Record):
        return _from_run(source, device)
    folder = Path(source).expanduser()
    settle(folder)
    if (folder / SETTINGS).is_file():
        return _from_folder(folder, device)
    if (folder / "record.json").is_file():
        return _from_run(Record.load(folder / "record.json"), device)
    raise FileNotFoundError(
        f"{folder} holds neither {SETTINGS} of a saved model nor the record.json of a run"
    )


def _from_run(record: Record, device: str) -> TrainedModel:
    if record.task != "pairs":
        raise ValueError(f"{record.name} is a run on labels; only runs on pairs load as a model")
    import pandas as pd

    runs = [record]
    if record.settings.get("networks", 1) > 1:  # each stands in a run of its own beside the record
        beside = Path(record.folder).parent
        runs = [Record.load(beside / name / "record.json") for name in record.parts]
    opened = [PairExperiment(record.settings["method"]).open_run(run, device) for run in runs]
    loaded = opened[0]
    data = loaded.dataset
    named = ("method", "method_options", "model", "model_options")
    facts = {name: record.settings[name] for name in ("dataset", "mrate", "protocol", "seed", "preset")}
    facts |= {name: round(value, 1) for name, value in record.metrics["test"].items() if name[-3:-1] == "_r"}
    settings = {
        **{name: record.settings[name] for name in named},
        "sizes": sizes_of(data),
        # One of the two ways in which the data sets here cut captions.
        "treebank": len(data.vocabulary.encode("a,b")) > len(data.vocabulary.encode("a")),
        "nclib": VERSION,
        "facts": {**facts, "run": record.name},
    }
    matched = None
    if found := [p for run in runs for p in _probabilities(run.folder)]:
        of, names = loaded.noise.image_of, data.train.details.get("pictures")
        matched = pd.DataFrame(
            {"caption": np.arange(len(of)), "image": of, "p_clean": np.mean(found, axis=0)}
        )
        if names is not None:
            matched["picture"] = [names[row] for row in of]
        matched["text"] = [data.train.captions.text(i) for i in range(len(of))]
    test = data.test
    told = [test.captions.text(row * test.captions_per_image) for row in range(test.n_images)]
    return TrainedModel(
        [network for one in opened for network in one.trainer.networks],
        data.vocabulary,
        settings,
        test.images[:],
        told,
        test.details.get("pictures"),
        matched,
    )


def _probabilities(folder: str) -> list[Array]:
    """Return the probabilities of the pairs by each network, of the last epoch that kept them."""
    kept = epoch_arrays(folder)
    last = next((kept[e] for e in sorted(kept, reverse=True) if "p_clean" in kept[e]), {})
    return [last[name] for name in ("p_clean", "p_clean_b") if name in last]


def _from_folder(folder: Path, device: str) -> TrainedModel:
    import pandas as pd

    check_folder(folder, FILES)
    at = choose_device(device)
    try:
        settings = json.loads((folder / SETTINGS).read_text("utf8"))
        name = settings["method"]
        own = without_removed(METHODS, name, settings["method_options"])
        method = METHODS[name].factory(make(METHODS.options(name), own))
        weights = checkpoint.load(folder / WEIGHTS)["networks"]
        networks = []
        with torch.random.fork_rng(devices=[]):
            for state in weights:
                plain = build(settings["model"], **settings["sizes"], **(settings["model_options"] or {}))
                network = method.prepare(plain)
                network.load_state_dict(state)
                networks.append(network.to(at).eval())
        words = Vocabulary.from_json(folder / WORDS, tokenise=tokenise if settings["treebank"] else None)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{folder} is not a saved model that can be loaded here: {error}") from error
    matched = pd.read_csv(folder / PAIRS) if (folder / PAIRS).is_file() else None
    return TrainedModel(networks, words, settings, matched=matched)
