"""What training, search and scoring ask of a model, whatever it is made of."""

from typing import Any, NamedTuple

from torch import Tensor, nn


class Outputs(NamedTuple):
    """What a forward pass gives.

    Attributes:
        features: What `project` turns into logits, `(batch, target, d_model)`; training picks the real positions first.
        auxiliary: Scalars that training adds to the loss, by name, each a sum over real tokens (`View.add_loss`).
    """

    features: Tensor
    auxiliary: dict[str, Tensor]


class Model(nn.Module):
    """Predicts sequences of tokens; `model._target_` of a config names a class of this kind.

    It is called with `vocab_size`, with `pad_id`, and with those keys of `model` that its constructor takes; with
    `source_vocab_size` too where the source has a vocabulary of its own.

    Attributes:
        pad_id: Token that fills up sequences.
    """

    pad_id: int

    def forward(self, batch: Any) -> Outputs:
        """Features that predict `batch.target[:, 1:]` from `batch.target[:, :-1]`, none seeing later targets."""
        raise NotImplementedError

    def project(self, features: Tensor) -> Tensor:
        """Logits `(..., vocab)` of `features` `(..., d_model)`: the linear map before the softmax (section 3.4)."""
        return nn.functional.linear(features, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """The matrix of `project`, `(vocab, d_model)`: training fuses it with the loss."""
        raise NotImplementedError

    @property
    def longest(self) -> int | None:
        """The greatest length that positions can encode; None when there is no limit."""
        return None

    def start(self, source: Tensor) -> Any:
        """Read `source` `(batch, source)`; returns a state with `reorder` and `select`, as `DecoderState` has them."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Logits of the next token of every beam, `(batch, beam, vocab)`, after `tokens` `(batch, beam)`."""
        raise NotImplementedError
