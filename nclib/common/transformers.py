"""The library ``transformers``: imported when it is needed, without its reports, and its tokenizers."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any


def library_for(option: str) -> Any:
    """Import the library, or raise a ValueError with the model's option that needs it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ValueError(
            f"{option} needs the library transformers: "
            "pip install -e '.[pretrained]' in the source folder of nclib"
        ) from error


@contextlib.contextmanager
def quietly(library: Any) -> Iterator[None]:
    """Silence the library's progress bars and reports; problems of a file are errors here."""
    log = library.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def load_tokenizer(source: str, option: str, reader: str = "text_words") -> Any:
    """Load the tokenizer that lies beside a network.

    Parameters
    ----------
    source, option : str
        As in :func:`nclib.models.pretrained.load`.
    reader : str
        What needs it, for messages.

    Returns
    -------
    PreTrainedTokenizerBase

    Raises
    ------
    ValueError
        If its files or the library are missing, or a file is damaged.
    """
    library = library_for(option)
    missing = ValueError(f"{option}={source!r} has no tokenizer's files, which {reader} needs")
    with quietly(library):
        try:
            found = library.AutoTokenizer.from_pretrained(source, local_files_only=True)
        except (OSError, ValueError) as error:
            raise missing from error
        except Exception as error:  # of the library's own parsers
            raise ValueError(f"{option}={source!r} has a damaged tokenizer's file ({error})") from None
    if len(found) < 8:  # the library makes an empty one where the vocabulary's file is missing
        raise missing
    return found
