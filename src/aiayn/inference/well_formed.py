"""A search among trees alone: every symbol that is taken can still become a tree over the sentence's words (6.3).

A hypothesis is a prefix of `(S (NP XX XX )NP XX )S`. After it may come an opening bracket while words are left, a word
inside of a bracket, the closing bracket of the innermost one, which holds something, and the end once the outermost one
is closed; that closes with the last word alone. The greatest length is kept in sight: nothing is opened that could not
be closed within it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aiayn.data.tokenizer import EOS, SPACE, Vocabularies

DEEPEST = 100  # brackets inside of each other; CRAFT's deepest tree has 34
LONGEST_CHAIN = 8  # brackets that open before a word; without a limit a search could go on to open them


class Symbols:
    """Which ids of a vocabulary are what.

    Args:
        vocabularies: Of a model that was trained on trees.

    Raises:
        ValueError: if there are no brackets among the target's pieces.
    """

    def __init__(self, vocabularies: Vocabularies) -> None:
        target = vocabularies.target
        if not (symbols := target.symbols):
            raise ValueError("inference.well_formed=true needs a model that was trained on trees, of problem=parsing.")
        labels = {symbol[1:]: number for number, symbol in enumerate(symbols) if symbol.startswith("(")}
        self.opens = torch.full((target.vocab_size,), -1)  # the number of the label that an id opens, or -1
        self.closes = torch.full((target.vocab_size,), -1)
        self.words = torch.zeros(target.vocab_size, dtype=torch.bool)  # XX, or tags
        for symbol, place in symbols.items():
            if symbol.startswith("("):
                self.opens[place] = labels[symbol[1:]]
            elif symbol.startswith(")"):
                self.closes[place] = labels[symbol[1:]]
            else:
                self.words[place] = True
        self.begins = torch.tensor([piece[0] == SPACE for piece in vocabularies.source.vocabulary])

    def to(self, device: torch.device) -> "Symbols":
        """The same there."""
        for name in ("opens", "closes", "words", "begins"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def trees(self, source: Tensor, limit: Tensor) -> "Trees":
        """What may be said of sentences, `(rows, source)`, in at most `limit` symbols with EOS, `(rows,)`."""
        left = self.to(source.device).begins[source].sum(1)
        nothing = torch.zeros_like(left)[:, None]
        stack = torch.full((len(left), 1, DEEPEST), -1, device=source.device)
        return Trees(self, limit[:, None], left[:, None], nothing, nothing, stack, nothing)


@dataclass
class Trees:
    """The unfinished trees of a search, `(rows, beam)` each.

    Attributes:
        symbols: Of the vocabulary.
        limit: Symbols that there may be, `(rows, 1)`.
        left: Words that are not yet said.
        depth: Brackets that are open.
        chain: How many were opened since the last other symbol.
        stack: Their labels, `(rows, beam, DEEPEST)`.
        length: Symbols so far.
    """

    symbols: Symbols
    limit: Tensor
    left: Tensor
    depth: Tensor
    chain: Tensor
    stack: Tensor
    length: Tensor

    def allowed(self) -> Tensor:
        """What may come next, `(rows, beam, vocab)`; EOS where nothing else can, as within too small a limit."""
        known, room = self.symbols, self.limit - self.length
        begun = self.length > 0
        opens = (self.left > 0) & (self.depth < DEEPEST) & (self.chain < LONGEST_CHAIN) & ~(begun & (self.depth == 0))
        opens &= room >= self.left + self.depth + 3  # itself, the words, all closing brackets, EOS
        says = (self.left > 0) & (self.depth > 0)
        closes = (self.depth > 0) & (self.chain == 0) & ~((self.depth == 1) & (self.left > 0))
        innermost = self.stack.gather(2, (self.depth - 1).clamp(min=0)[:, :, None])  # (rows, beam, 1)
        found = opens[:, :, None] & (known.opens >= 0)
        found |= says[:, :, None] & known.words
        found |= closes[:, :, None] & (known.closes == innermost) & (known.closes >= 0)
        found[:, :, EOS] = (begun & (self.depth == 0)) | ~found.any(2)
        return found

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Go on by `token`, each from the hypothesis `parent`, both `(rows, new beam)`."""
        known = self.symbols
        self.left, self.depth, self.chain, self.length = (
            state.gather(1, parent) for state in (self.left, self.depth, self.chain, self.length)
        )
        self.stack = self.stack.gather(1, parent[:, :, None].expand(-1, -1, DEEPEST))
        label, closes = known.opens[token], known.closes[token] >= 0
        opens = (label >= 0) & (self.depth < DEEPEST)
        place = self.depth.clamp(max=DEEPEST - 1)[:, :, None]
        kept = torch.where(opens, label, self.stack.gather(2, place)[:, :, 0])
        self.stack = self.stack.scatter(2, place, kept[:, :, None])
        self.depth = (self.depth + opens.long() - closes.long()).clamp(min=0)
        self.left = (self.left - known.words[token].long()).clamp(min=0)
        self.chain = torch.where(opens, self.chain + 1, 0)
        self.length = self.length + 1

    def select(self, index: Tensor) -> None:
        """Keep rows."""
        for name in ("limit", "left", "depth", "chain", "stack", "length"):
            setattr(self, name, getattr(self, name)[index])
