"""Labelled F1 of the brackets of parse trees, counted as EVALB counts it, which has scored every parser since 1997.

What it counts, and what is strange in it, says `bracketing`.
"""

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from aiayn.evaluation.bracketing import FIGURES, Comparison, compared, read
from aiayn.evaluation.evalb_parameters import Parameters, parameters_of, read_parameters

log = logging.getLogger(__name__)

# What is counted of a sentence, in this order.
COLUMNS = (*FIGURES, "complete", "no_crossing", "two_crossing", "valid", "error", "skipped", "sentences")
MATCHED, GOLD, TEST = map(COLUMNS.index, ("matched", "gold", "test"))


class Evalb:
    """F1 of the brackets of parse trees, in per cent.

    Args:
        parameters: `Parameters` by name, of which those left out are COLLINS.prm's; or a parameter file of EVALB.
        max_length: Of the sentences that count, in words of the treebank; None: all.
    """

    higher_is_better = True

    def __init__(
        self, parameters: Mapping[str, Any] | str = MappingProxyType({}), *, max_length: int | None = None
    ) -> None:
        if not isinstance(parameters, Mapping | str) or parameters == "":
            raise ValueError(
                f"metrics.evalb.parameters must be a parameter file of EVALB, or what is in one, got {parameters!r}."
            )
        if max_length is not None and max_length < 1:
            raise ValueError(
                f"metrics.evalb.max_length must be at least 1, got {max_length}; null counts all sentences."
            )
        self.given = parameters if isinstance(parameters, str) else parameters_of(parameters)
        self.max_length = max_length
        self.name = "F1" if max_length is None else f"F1, {max_length} words"

    @cached_property
    def parameters(self) -> Parameters:
        """What counts; a file is read when it is needed, since the value of sums needs none."""
        return read_parameters(Path(self.given)) if isinstance(self.given, str) else self.given

    def signature(self, language: str | None, references: int = 1) -> str:
        """See `Metric`."""
        return f"evalb:{self.parameters}|words:{'all' if self.max_length is None else f'<={self.max_length}'}"

    def counts(self, hypotheses: list[str], references: list[list[str]], language: str | None) -> np.ndarray:
        """Of trees in brackets, one a line: `(sentences, 13)`, `COLUMNS`; errors and skipped sentences are warned of.

        Raises:
            ValueError: as `compare`.
        """
        found = self.compare(hypotheses, references)
        longest = max((one.length for one in found), default=0) if self.max_length is None else self.max_length
        counts = rows(found, longest)
        errors, skipped, sentences = counts[:, -3:].sum(0).tolist()
        if errors or skipped:
            log.warning(
                "%s leaves out %d of %d sentences, as EVALB does: %d errors (other words, or broken brackets) and %d "
                "skipped (no word)",
                *(self.name, errors + skipped, sentences, errors, skipped),
            )
        return counts

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Between 0 and 100; 0 where there are no brackets."""
        return 200 * sums[..., MATCHED] / np.maximum(sums[..., GOLD] + sums[..., TEST], 1)

    def compare(self, hypotheses: list[str], references: list[list[str]]) -> list[Comparison]:
        """Each tree with its reference.

        Raises:
            ValueError: if there are several sets of references, or a line of them is no tree.
        """
        if len(references) != 1:
            raise ValueError(f"evalb counts against one tree of each sentence, got {len(references)}; give one file.")
        found = []
        for number, (hypothesis, reference) in enumerate(zip(hypotheses, references[0], strict=True), 1):
            gold = read(reference, self.parameters)
            if gold.broken or not gold.leaves:
                raise ValueError(f"line {number} of the references is no tree: {gold.broken or 'it has no word'}.")
            found.append(compared(gold, read(hypothesis, self.parameters), self.parameters))
        return found


def rows(found: list[Comparison], longest: int) -> np.ndarray:
    """What sentences add to the sums, `(sentences, 13)`: errors and skipped ones that they are, longer ones nothing."""
    counts = np.zeros((len(found), len(COLUMNS)), dtype=np.int64)
    for row, one in zip(counts, found, strict=True):
        if one.length <= longest:
            row[-4:] = one.status == 0, one.status == 1, one.status == 2, 1
            if not one.status:
                crossing, complete = one.figures["crossing"], one.figures["gold"] == one.figures["test"]
                complete &= one.figures["test"] == one.figures["matched"]
                row[:-4] = *one.figures.values(), complete, crossing == 0, crossing <= 2
    return counts
