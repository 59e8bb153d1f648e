"""The Transformer (section 3, figure 1): encoder, decoder, and the one matrix that embeds and predicts.

The parts come from builders (functions that make a new module), so that the configuration chooses
their classes and no two layers share weights.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from aiayn.model.dropout import Dropout, check_dropout
from aiayn.model.layer import DecoderLayer, EncoderLayer, Stack
from aiayn.model.model import Model, Outputs
from aiayn.model.state import DecoderState, Memory
from aiayn.model.view import View


class Pairs(Protocol):
    """What is read of a batch.

    Attributes:
        source: `(batch, source)`.
        target: From BOS to EOS, `(batch, target + 1)`.
        padded: Whether `source` holds padding; known before, since to look would make a GPU wait.
    """

    source: Tensor
    target: Tensor
    padded: bool


class TranslationTransformer(Model):
    """Map a source sequence to logits over the next token of a target sequence; a `Model`."""

    def __init__(
        self,
        vocab_size: int,
        *,
        encoder_layers: int,
        decoder_layers: int,
        d_model: int,
        dropout: float,
        attention: Callable[..., nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        position: Callable[[], nn.Module],
        decoder_norm: Callable[[], nn.Module] | None = None,
        end: Callable[[], nn.Module] | None = None,
        source_vocab_size: int | None = None,
        pad_id: int = 0,
    ) -> None:
        """Build the model.

        Args:
            vocab_size: Entries of the vocabulary that source and target share, or of the target's.
            encoder_layers: N of the encoder.
            decoder_layers: N of the decoder.
            d_model: Width of every sub-layer's output.
            dropout: Rate on the sums of embeddings and positions; `norm` brings the rate on sub-layer outputs.
            attention: Builds a module like `MultiHeadAttention`, from its `kind`: `encoder`, `decoder` or `cross`.
            feed_forward: Builds a module like `FeedForward`.
            norm: Builds a module like `PostNorm`.
            position: Builds a module like `SinusoidalPosition`.
            decoder_norm: Builds the decoder's, where that is another one than the encoder's, as DeepNorm's.
            end: Builds what follows the last layer of either stack, such as the final norm of pre-norm models.
            source_vocab_size: Entries of a vocabulary of the source's own; None: both sides share one.
            pad_id: Token that fills up sequences.
        """
        super().__init__()
        sizes = {"vocab_size": vocab_size, "encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
        for name, size in {**sizes, "d_model": d_model}.items():
            if size < 1:
                raise ValueError(f"model.{name} must be at least 1, got {size}. Give a positive whole number.")
        check_dropout("dropout", dropout)
        self.pad_id = pad_id
        self.scale = math.sqrt(d_model)
        # One matrix for both embeddings and the softmax (section 3.4), where the vocabulary is one; scaled up, an
        # embedding has unit variance.
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.source_embedding: nn.Embedding | None = None
        if source_vocab_size is not None:
            self.source_embedding = nn.Embedding(source_vocab_size, d_model)
            nn.init.normal_(self.source_embedding.weight, std=d_model**-0.5)
        self.source_position = position()
        self.target_position = position()
        self.dropout = Dropout(dropout)
        parts = {"attention": attention, "feed_forward": feed_forward}
        self.encoder = Stack(encoder_layers, layer=partial(EncoderLayer, **parts, norm=norm), end=end)
        self.decoder = Stack(decoder_layers, layer=partial(DecoderLayer, **parts, norm=decoder_norm or norm), end=end)

    def forward(self, batch: Pairs) -> Outputs:
        """Predict every next token; no position sees later targets.

        Returns:
            Features that `project` turns into logits of `batch.target[:, 1:]`.
        """
        target = batch.target[:, :-1]
        auxiliary: dict[str, Tensor] = {}
        memory = self.encode(batch.source, padded=batch.padded, auxiliary=auxiliary)
        sources, targets = (_places(tokens) for tokens in (batch.source, target))
        own = View(targets, targets, causal=True, real=target != self.pad_id, auxiliary=auxiliary)
        across = View(targets, sources, mask=memory.mask, real=own.real, auxiliary=auxiliary)
        x = self._embed(target, self.embedding, self.target_position)
        return Outputs(self.decoder(x, memory.states, own, across), auxiliary)

    @property
    def output_weight(self) -> Tensor:
        """The matrix of `project`, `(vocab, d_model)`."""
        return self.embedding.weight

    def encode(self, source: Tensor, *, padded: bool, auxiliary: dict[str, Tensor] | None = None) -> Memory:
        """Read `source` `(batch, source)`; its padding is hidden from every query.

        Args:
            source: Tokens and EOS.
            padded: Whether there is padding.
            auxiliary: Where parts add their losses.
        """
        real = source != self.pad_id if padded else None
        mask = None if real is None else real[:, None, None]  # (batch, 1, 1, source)
        places = _places(source)
        view = View(places, places, mask=mask, real=real, auxiliary={} if auxiliary is None else auxiliary)
        x = self._embed(source, self.source_embedding or self.embedding, self.source_position)
        return Memory(self.encoder(x, view), mask)

    def start(self, source: Tensor) -> DecoderState:
        """Read `source` `(batch, source)` and prepare for decoding step by step."""
        padded = bool((source == self.pad_id).any())
        return DecoderState(self.encode(source, padded=padded), len(self.decoder.layers))

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Logits of the next token of every beam, `(batch, beam, vocab)`.

        Args:
            tokens: The token that each beam was continued by (BOS at first), `(batch, beam)`. One beam may become many
                after the first step, without a `reorder`.
            state: From `start`; moves on by one position.
        """
        x = self.embedding(tokens) * self.scale
        x = self.target_position(x[:, :, None], state.length).squeeze(2)  # every beam is at the same position
        own, across = state.advance(tokens.size(1))
        features = self.decoder(self.dropout(x), state.memory.states, own, across, caches=state.caches)
        return self.project(features)

    @property
    def longest(self) -> int | None:
        """The greatest length that the target positions can encode; None when there is no limit."""
        return getattr(self.target_position, "longest", None)

    def _embed(self, tokens: Tensor, embedding: nn.Embedding, position: nn.Module) -> Tensor:
        return self.dropout(position(embedding(tokens) * self.scale))  # (batch, length, d_model)


def _places(tokens: Tensor) -> Tensor:
    """Where the tokens of each sequence stand, `(length,)`."""
    return torch.arange(tokens.size(1), device=tokens.device)
