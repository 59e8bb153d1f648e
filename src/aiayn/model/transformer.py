"""The Transformer (section 3, figure 1): encoder, decoder, and the one matrix that embeds and predicts.

The parts come from builders (functions without arguments that make a new module), so that the configuration chooses
their classes and no two layers share weights.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from aiayn.model.decoder import Decoder, DecoderState, Memory
from aiayn.model.dropout import Dropout
from aiayn.model.encoder import Encoder
from aiayn.model.mask import padding_mask


class Transformer(nn.Module):
    """Map a source sequence to logits over the next token of a target sequence."""

    def __init__(
        self,
        vocab_size: int,
        *,
        layers: int,
        d_model: int,
        dropout: float,
        attention: Callable[[], nn.Module],
        feed_forward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        position: Callable[[], nn.Module],
        pad_id: int = 0,
    ) -> None:
        """Build the model.

        Args:
            vocab_size: Entries of the vocabulary that source and target share.
            layers: N, of the encoder and of the decoder.
            d_model: Width of every sub-layer's output.
            dropout: Rate on the sums of embeddings and positions; `norm` brings the rate on sub-layer outputs.
            attention: Builds a module like `MultiHeadAttention`.
            feed_forward: Builds a module like `FeedForward`.
            norm: Builds a module like `PostNorm`.
            position: Builds a module like `SinusoidalPosition`.
            pad_id: Token that fills up sequences.
        """
        super().__init__()
        for name, size in {"vocab_size": vocab_size, "layers": layers, "d_model": d_model}.items():
            if size < 1:
                raise ValueError(f"model.{name} must be at least 1, got {size}. Give a positive whole number.")
        if not 0 <= dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {dropout}. The paper's base model has 0.1.")
        self.pad_id = pad_id
        self.scale = math.sqrt(d_model)
        # One matrix for both embeddings and the softmax (section 3.4); scaled up, an embedding has unit variance.
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.source_position = position()
        self.target_position = position()
        self.dropout = Dropout(dropout)
        self.encoder = Encoder(layers, attention=attention, feed_forward=feed_forward, norm=norm)
        self.decoder = Decoder(layers, attention=attention, feed_forward=feed_forward, norm=norm)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Predict every next token.

        Args:
            source: `(batch, source)`.
            target: `(batch, target)`, from BOS on.

        Returns:
            Logits, `(batch, target, vocab)`; no position sees later targets.
        """
        return self.project(self.features(source, target))

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """What `project` turns into logits, `(batch, target, d_model)`: training picks the real positions first."""
        return self.decoder(self._embed(target, self.target_position), self.encode(source))

    def project(self, features: Tensor) -> Tensor:
        """Logits `(..., vocab)` of `features` `(..., d_model)`: the linear map before the softmax (section 3.4)."""
        return functional.linear(features, self.embedding.weight)

    def encode(self, source: Tensor) -> Memory:
        """Read `source` `(batch, source)`."""
        mask = padding_mask(source, self.pad_id)
        return Memory(self.encoder(self._embed(source, self.source_position), mask), mask)

    def start(self, source: Tensor) -> DecoderState:
        """Read `source` `(batch, source)` and prepare for decoding step by step."""
        return DecoderState(self.encode(source), len(self.decoder.layers))

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Logits of the next token of every beam, `(batch, beam, vocab)`.

        Args:
            tokens: The token that each beam was continued by (BOS at first), `(batch, beam)`. One beam may become many
                after the first step, without a `reorder`.
            state: From `start`; moves on by one position.
        """
        x = self.embedding(tokens) * self.scale
        x = self.target_position(x[:, :, None], state.length).squeeze(2)  # every beam is at the same position
        return self.project(self.decoder.step(self.dropout(x), state))

    @property
    def longest(self) -> int | None:
        """The greatest length that the target positions can encode; None when there is no limit."""
        return getattr(self.target_position, "longest", None)

    def _embed(self, tokens: Tensor, position: nn.Module) -> Tensor:
        return self.dropout(position(self.embedding(tokens) * self.scale))  # (batch, length, d_model)
