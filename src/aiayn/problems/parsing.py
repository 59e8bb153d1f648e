"""Sentences into constituency trees, a sequence like any other (section 6.3)."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from hydra.utils import instantiate

from aiayn.data.corpora.treebank import Trees
from aiayn.data.trees import leaves, linearised, tree_of
from aiayn.evaluation.metric import Metric, Score, score_of
from aiayn.evaluation.metrics.mended import Mended
from aiayn.problems.translation import Translation


class Parsing(Translation):
    """Pairs of a sentence and the symbols of its tree; scored are trees.

    Whatever the model writes becomes a tree over the sentence's words (`trees.tree_of`). EVALB leaves punctuation out
    by its tag. So a model that learns no tags is given the treebank's, as parsers are that take tagged text; nothing
    else of the treebank's tree is known then.
    """

    output = "tree"

    def asked_sizes(self) -> dict[str, int]:
        """See `Translation`; data without trees are refused."""
        _ = self.trees
        return super().asked_sizes()

    @property
    def language(self) -> None:
        """None: trees are not tokenised."""

    @cached_property
    def trees(self) -> Trees:
        """The treebank.

        Raises:
            ValueError: if the data are none.
        """
        trees = instantiate(self.cfg.data.corpus, _convert_="all")
        if not isinstance(trees, Trees):
            raise ValueError(f"problem=parsing needs trees, and data={self.cfg.data.name} has none; name a treebank.")
        return trees

    def references(self, split: str) -> list[str]:
        """The treebank's trees, in brackets."""
        if split not in self._references:
            self._references[split] = list(self.trees.trees(split))
        return self._references[split]

    @cached_property
    def _references(self) -> dict[str, list[str]]:
        return {}

    def outputs(self, split: str, decoded: Sequence[str], rows: slice = slice(None)) -> list[str]:
        """The trees that decoded symbols say."""
        found = []
        for tree, symbols in zip(self.references(split)[rows], decoded, strict=True):
            words, tags = leaves(tree)
            found.append(tree_of(symbols, words, None if self.trees.tags else tags)[0])
        return found

    def counted(
        self, metric: Metric, decoded: Sequence[str], outputs: list[str], references: list[str]
    ) -> tuple[Score, np.ndarray]:
        """See `Translation`; whether a tree was mended shows where it says other symbols than were decoded."""
        if not isinstance(metric, Mended):
            return super().counted(metric, decoded, outputs, references)
        pairs = zip(decoded, outputs, strict=True)
        mended = [linearised(tree, tags=self.trees.tags) != " ".join(symbols.split()) for symbols, tree in pairs]
        counts = np.column_stack([mended, np.ones(len(mended))]).astype(int)
        return score_of(metric, counts, metric.signature(None)), counts
