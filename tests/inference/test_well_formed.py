"""A search among trees finds the best tree, and nothing else."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from aiayn.data.tokenizer import BOS, EOS, PAD, Tokenizer, Vocabularies
from aiayn.data.trees import tree_of
from aiayn.inference.beam_search import search
from aiayn.inference.translation import translator
from aiayn.inference.well_formed import Symbols
from aiayn.model.model import Model

SYMBOLS = ["(A", "(B", ")A", ")B", "XX"]


@pytest.fixture(scope="module")
def vocabularies() -> Vocabularies:
    source = Tokenizer.train(["ab cde fg", "a b c d e f g"], vocab_size=14)
    return Vocabularies(source, Tokenizer.train([" ".join(SYMBOLS)] * 2, vocab_size=9, symbols=SYMBOLS))


class Fixed(Model):
    """Says what it says whatever it has read, by the two symbols before."""

    longest, pad_id = None, PAD

    def __init__(self, vocab_size: int, seed: int) -> None:
        super().__init__()
        self.logits = torch.nn.Embedding(vocab_size**2, vocab_size)
        torch.manual_seed(seed)
        torch.nn.init.normal_(self.logits.weight, std=2)
        self.vocab_size = vocab_size

    def start(self, source: torch.Tensor) -> Any:
        return _State(torch.full((len(source), 1), BOS), torch.full((len(source), 1), BOS))

    def step(self, tokens: torch.Tensor, state: Any) -> torch.Tensor:
        state.before, state.last = state.last, tokens
        before = state.before if state.before.shape == tokens.shape else state.before.expand_as(tokens)
        return self.logits(before * self.vocab_size + tokens)


class _State:
    def __init__(self, before: torch.Tensor, last: torch.Tensor) -> None:
        self.before, self.last = before, last

    def reorder(self, parent: torch.Tensor) -> None:
        self.before, self.last = (x.expand(-1, max(1, x.size(1))).gather(1, parent) for x in (self.before, self.last))

    def select(self, rows: list[int]) -> None:
        self.before, self.last = self.before[rows], self.last[rows]


def score(model: Fixed, tokens: list[int]) -> float:
    """Log-probability of a target with EOS."""
    before, last, total = BOS, BOS, 0.0
    for token in [*tokens, EOS]:
        total += model.logits.weight[before * model.vocab_size + last].log_softmax(0)[token].item()
        before, last = last, token
    return total


def said(vocabularies: Vocabularies, tokens: list[int]) -> str:
    return vocabularies.target.decode([tokens])[0]


@pytest.mark.parametrize("words", [1, 2])
def test_the_best_of_all_trees_is_found(vocabularies: Vocabularies, words: int) -> None:
    symbols = Symbols(vocabularies)
    ids = list(vocabularies.target.symbols.values())
    source = vocabularies.source.encode([" ".join(["ab"] * words)])[0].tolist()
    longest = 7
    targets = [list(one) for length in range(3, longest) for one in product(ids, repeat=length)]
    trees = [one for one in targets if not tree_of(said(vocabularies, one), ["w"] * words)[1]]
    assert len(trees) > 2
    orders = set()
    for seed in range(5):
        model = Fixed(vocabularies.target.vocab_size, seed)
        batch = torch.tensor([[*source, EOS]])
        extra = longest - batch.size(1)
        [found] = search(model, batch, beam=100, alpha=0.0, max_extra_length=extra, n_best=7, symbols=symbols)
        best = sorted(trees, key=lambda tokens: -score(model, tokens))[:7]
        assert [hypothesis.tokens for hypothesis in found[: len(best)]] == best
        assert found[0].log_probability == pytest.approx(score(model, best[0]), abs=1e-4)
        orders.add(str(best))
    assert len(orders) > 1


@pytest.mark.parametrize("beam", [1, 3])
def test_every_output_is_a_tree_over_the_words(vocabularies: Vocabularies, beam: int) -> None:
    generator = np.random.default_rng(1)
    lines = [" ".join(generator.choice(["ab", "cde", "fg", "a", "gg"], generator.integers(1, 9))) for _ in range(23)]
    settings: dict[str, Any] = {"beam": beam, "alpha": 0.6, "max_extra_length": 9, "tokens_per_batch": 300}
    mended = {True: 0, False: 0}
    for seed in range(3):
        model = Fixed(vocabularies.target.vocab_size, seed)
        for well_formed in (True, False):
            own = translator(model, vocabularies, **settings, well_formed=well_formed)
            alone = [own.translate([line])[0] for line in lines[:3]]
            together = own.translate(lines)
            assert together[:3] == alone
            mended[well_formed] += sum(tree_of(o, line.split())[1] for o, line in zip(together, lines, strict=True))
    assert mended[True] == 0
    assert mended[False] > 30


def test_where_no_tree_has_room_the_search_ends_all_the_same(vocabularies: Vocabularies) -> None:
    model = Fixed(vocabularies.target.vocab_size, 1)
    source = torch.tensor([[*vocabularies.source.encode(["ab ab ab"])[0].tolist(), EOS]])
    [found] = search(model, source[:, -2:], max_extra_length=0, symbols=Symbols(vocabularies))
    assert found[0].tokens == []


def test_what_knows_no_trees_is_refused(vocabularies: Vocabularies) -> None:
    plain = Vocabularies.joint(vocabularies.source)
    settings: dict[str, Any] = {"beam": 2, "alpha": 0.6, "max_extra_length": 9, "tokens_per_batch": 300}
    model = Fixed(vocabularies.target.vocab_size, 1)
    with pytest.raises(ValueError, match=r"inference\.well_formed=true needs a model that was trained on trees"):
        translator(model, plain, **settings, well_formed=True)
    with pytest.raises(
        ValueError, match=r"inference\.well_formed=true is of a search, and inference\.temperature draws"
    ):
        translator(model, vocabularies, **settings, well_formed=True, temperature=1.0)
