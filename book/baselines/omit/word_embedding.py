"""Word embeddings that are held for some epochs, as PVSE and PCME begin from GloVe."""

from __future__ import annotations

from torch import nn

from nclib.models.encoders import start_from


class WordEmbedding(nn.Embedding):
    """Word embeddings, normal at first or from a file, and then held for some epochs.

    Parameters
    ----------
    vocab_size, word_dim : int
    word_vectors : str
        As in :func:`start_from`, or empty.
    held_epochs : int
        First epochs, warm-up included, in which embeddings from a file stay as they are.

    Raises
    ------
    ValueError
        As :func:`start_from`; for ``held_epochs`` without a file.
    """

    def __init__(self, vocab_size: int, word_dim: int, word_vectors: str, held_epochs: int) -> None:
        super().__init__(vocab_size, word_dim)
        if word_vectors:
            start_from(self.weight, word_vectors)
        elif held_epochs:
            raise ValueError(
                f"held_words={held_epochs} is used with word_vectors only, from which the embeddings start"
            )
        self.held_epochs = held_epochs

    def begin_epoch(self, epoch: int) -> None:
        """Train the embeddings in this epoch (the first is 0), or hold them as they are."""
        self.weight.requires_grad_(epoch >= self.held_epochs)
