"""The library ``transformers``: imported when it is needed, without its reports, and its tokenizers."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nclib.common.extras import command

SAFE = {"local_files_only": True, "trust_remote_code": False}
"""Options of every ``from_pretrained``: nothing is fetched, and no Python file beside the weights runs."""

DESCRIPTIONS = ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
"""Files that may ask for Python files of their folder, under ``auto_map``."""


def library_for(source: str, option: str) -> Any:
    """Import the library for a folder of weights that brings no code of its own.

    Parameters
    ----------
    source, option : str
        As in :func:`nclib.models.pretrained.load`.

    Raises
    ------
    ValueError
        If the library is missing, or a description of the network asks for code that it does not have.
    """
    try:
        library = importlib.import_module("transformers")
    except ImportError as error:
        raise ValueError(f"{option} needs the library transformers: {command('pretrained')}") from error
    for name in DESCRIPTIONS:
        try:
            file = library.utils.cached_file(source, name, local_files_only=True)
            asks = '"auto_map"' in Path(file or "").read_text("utf8", "replace")
        except OSError:  # not there; what is needed is named where it is read
            continue
        if asks:
            raise ValueError(
                f"{option}={source!r}: {name} asks for Python files of its own (auto_map), which are "
                "never run; give a network that the library transformers knows without them"
            )
    return library


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
        If its files or the library are missing, a file is damaged, or one asks for code of its own.
    """
    library = library_for(source, option)
    missing = ValueError(f"{option}={source!r} has no tokenizer's files, which {reader} needs")
    with quietly(library):
        try:
            tokenizer = library.AutoTokenizer.from_pretrained(source, **SAFE)
        except (OSError, ValueError) as error:
            raise missing from error
        except Exception as error:  # of the library's own parsers
            raise ValueError(f"{option}={source!r} has a damaged tokenizer's file ({error})") from None
    if len(tokenizer) < 8:  # the library makes an empty one where the vocabulary's file is missing
        raise missing
    return tokenizer
