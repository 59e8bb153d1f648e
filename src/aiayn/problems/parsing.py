"""Sentences into constituency trees, a sequence like any other (section 6.3)."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from hydra.utils import instantiate

from aiayn.data.corpora.treebank import Trees
from aiayn.data.trees import leaves, tree_of, with_punctuation
from aiayn.evaluation.metric import Metric, Score, score_of
from aiayn.evaluation.metrics.mended import Mended
from aiayn.problems.translation import Translation


class Parsing(Translation):
    """Pairs of a sentence and the symbols of its tree; scored are trees.

    Whatever the model writes becomes a tree over the sentence's words (`trees.tree_of`). EVALB leaves punctuation out
    by its tag, and a sentence whose trees differ in that. So the tags of punctuation are the treebank's, and those of
    all words where the model learns none, as of parsers that take tagged text; nothing else of its tree is known then.
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
        return [self._tree(*pair)[0] for pair in zip(decoded, self.references(split)[rows], strict=True)]

    def counted(
        self, metric: Metric, decoded: Sequence[str], outputs: list[str], references: list[str]
    ) -> tuple[Score, np.ndarray]:
        """See `Translation`; whether a tree was mended is told from the symbols."""
        if not isinstance(metric, Mended):
            return super().counted(metric, decoded, outputs, references)
        mended = [self._tree(*pair)[1] for pair in zip(decoded, references, strict=True)]
        counts = np.column_stack([mended, np.ones(len(mended))]).astype(int)
        return score_of(metric, counts, metric.signature(None)), counts

    def _tree(self, symbols: str, reference: str) -> tuple[str, bool]:
        """The tree that symbols say over the words of a reference, and whether they were mended for it."""
        words, tags = leaves(reference)
        if not self.trees.tags:
            return tree_of(symbols, words, tags)
        tree, mended = tree_of(symbols, words)
        return with_punctuation(tree, tags), mended
