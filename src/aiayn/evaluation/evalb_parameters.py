"""What EVALB counts, and what is equal: keys of a config, or a parameter file of EVALB (Flupp/evalb:README, part 6)."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

Pairs = Collection[tuple[str, str]]


@dataclass
class Parameters:
    """Parameters of EVALB; without arguments those of its COLLINS.prm, as in conf/metrics/evalb.yaml.

    Attributes:
        labelled: Whether the labels of brackets have to be equal.
        cutoff: The report's second summary is of sentences of at most so many words.
        deleted: Tags of words and labels of brackets that do not count; what is in the brackets stays.
        deleted_for_length: Tags of words that are no part of a sentence's length.
        quotes: Tags of quotation marks and apostrophes that are put back where only one side has deleted them.
        equal_labels: Pairs of labels, or of tags, that are equal; here in both orders.
        equal_words: Likewise.

    Raises:
        ValueError: if a value is of another kind.
    """

    labelled: bool = True
    cutoff: int = 40
    deleted: Collection[str] = ("TOP", "-NONE-", ",", ":", "``", "''", ".")
    deleted_for_length: Collection[str] = ("-NONE-",)
    quotes: Collection[str] = ()
    equal_labels: Pairs = (("ADVP", "PRT"),)
    equal_words: Pairs = ()

    def __post_init__(self) -> None:
        if type(self.labelled) is not bool:
            raise ValueError(f"metrics.evalb.parameters.labelled must be true or false, got {self.labelled!r}.")
        if type(self.cutoff) is not int:
            raise ValueError(f"metrics.evalb.parameters.cutoff must be a whole number, got {self.cutoff!r}.")
        for name in ("deleted", "deleted_for_length", "quotes"):
            if not _is_list(values := getattr(self, name)) or not all(isinstance(value, str) for value in values):
                raise ValueError(
                    f"metrics.evalb.parameters.{name} must be a list of labels, as in [TOP, -NONE-], got {values}."
                )
            setattr(self, name, frozenset(values))
        for name in ("equal_labels", "equal_words"):
            if not _is_list(values := getattr(self, name)) or not all(map(_is_pair, values)):
                raise ValueError(
                    f"metrics.evalb.parameters.{name} must be a list of pairs, as in [[ADVP, PRT]], got {values}."
                )
            setattr(self, name, frozenset(order for one, other in values for order in ((one, other), (other, one))))

    def __str__(self) -> str:
        """What of it decides scores, for a signature."""
        said = {name: sorted(getattr(self, name)) for name in ("deleted", "deleted_for_length", "quotes")}
        for name in ("equal_labels", "equal_words"):
            said[name] = sorted(f"{one}={other}" for one, other in getattr(self, name) if one <= other)
        lists = [f"{name}:{' '.join(values)}" for name, values in said.items() if values]
        return "|".join(["labelled" if self.labelled else "unlabelled", *lists])


def _is_list(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | Mapping)


def _is_pair(value: Any) -> bool:
    return _is_list(value) and len(value) == 2 and all(isinstance(one, str) for one in value)


def parameters_of(config: Mapping[str, Any]) -> Parameters:
    """Those that a config's keys give.

    Raises:
        ValueError: if a key is none of them, or its value of another kind.
    """
    known = [one.name for one in fields(Parameters)]
    if unknown := [key for key in config if key not in known]:
        raise ValueError(
            f"metrics.evalb.parameters.{unknown[0]} is none of EVALB's parameters; there are {', '.join(known)}."
        )
    return Parameters(**config)


LABELS = {"DELETE_LABEL": "deleted", "DELETE_LABEL_FOR_LENGTH": "deleted_for_length", "QUOTE_LABEL": "quotes"}
PAIRS = {"EQ_LABEL": "equal_labels", "EQ_WORD": "equal_words"}
NUMBERS = (
    "LABELED",
    "CUTOFF_LEN",
    "DEBUG",
    "MAX_ERROR",
)  # the last two, what is printed and when to give up, do nothing
RULES = {
    **dict.fromkeys(LABELS, ("one label", r"\S+")),
    **dict.fromkeys(PAIRS, ("two values", r"\S+ \S+")),
    **dict.fromkeys(NUMBERS, ("a whole number", "-?[0-9]+")),
}


def read_parameters(path: Path) -> Parameters:
    """A parameter file of EVALB, `*.prm`: a directive and its value in a line; # begins one that says nothing.

    As in EVALB, lines of fewer than three characters say nothing either. What EVALB complains of, or takes for the
    longer name of a label that there is not, is refused.

    Raises:
        ValueError: if it cannot be read, or has another line.
    """
    where = f"metrics.evalb.parameters={path}"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where} cannot be read: {error}.") from error
    found: dict[str, Any] = {key: [] for key in (*LABELS.values(), *PAIRS.values())}  # as EVALB has them without a file
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or len(line.rstrip()) < 3:
            continue
        directive, *values = re.split(r"\s+", line.rstrip(), flags=re.ASCII)
        if directive not in RULES:
            raise ValueError(
                f"{where}, line {number}, must begin with one of {', '.join(RULES)}, got {line.rstrip()!r}."
            )
        rule, pattern = RULES[directive]
        if not re.fullmatch(pattern, " ".join(values), re.ASCII):
            raise ValueError(
                f"{where}, line {number}: {directive} takes {rule}, got {' '.join(values) or 'nothing'}; mend the line."
            )
        if directive in LABELS:
            found[LABELS[directive]].append(values[0])
        elif directive in PAIRS:
            found[PAIRS[directive]].append(values)
        elif directive == "LABELED":
            found["labelled"] = int(values[0]) != 0
        elif directive == "CUTOFF_LEN":
            found["cutoff"] = int(values[0])
    return Parameters(**found)
