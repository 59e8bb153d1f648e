"""EVALB's own report of parse trees, line by line (Flupp/evalb:evalb.c): a row for each sentence, and two summaries."""

from collections.abc import Iterator

from aiayn.evaluation.metrics.evalb import COLUMNS, Evalb, rows

HEAD = (
    "  Sent.                        Matched  Bracket   Cross        Correct Tag\n"
    " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"
)
RULE = "=" * 76


def report(metric: Evalb, hypotheses: list[str], references: list[list[str]]) -> Iterator[tuple[str, bool]]:
    """What EVALB prints, and whether it is a message, which EVALB prints to standard error, in its order.

    The metric's `max_length` counts for nothing here: the second summary is of `parameters.cutoff` words.

    Raises:
        ValueError: as `Evalb.compare`.
    """
    found = metric.compare(hypotheses, references)
    yield f"{HEAD}\n{RULE}", False
    for number, one in enumerate(found, 1):
        for message in one.errors:
            yield f"{number} : {message}", True
        yield f"{number:4d}  {one.length:3d}    {one.status}  {_sentence(**one.figures)}", False
    cutoff = metric.parameters.cutoff
    everything, short = (
        dict(zip(COLUMNS, rows(found, longest).sum(0).tolist(), strict=True))
        for longest in (max(one.length for one in found), cutoff)
    )
    yield f"{RULE}\n{_total(everything)}\n=== Summary ===\n", False
    yield f"-- All --\n{_summary(everything)}\n\n-- len<={cutoff} --\n{_summary(short)}", False


def _share(part: int, whole: int) -> float:
    """In per cent."""
    return 100.0 * part / whole if whole else 0.0


def _sentence(*, matched: int, gold: int, test: int, crossing: int, words: int, tags: int) -> str:
    return (
        f"{_share(matched, gold):6.2f} {_share(matched, test):6.2f}   {matched:3d}    {gold:3d}  {test:3d}    "
        f"{crossing:3d}   {words:4d}  {tags:4d}   {_share(tags, words):6.2f}"
    )


def _total(sums: dict[str, int]) -> str:
    """The line below the sentences."""
    matched, gold, test, crossing, words, tags = list(sums.values())[:6]
    tagging = f"  {words:5d} {tags:5d}   {_share(tags, words):6.2f}"
    if not gold or not test:
        return tagging
    shares = f"{_share(matched, gold):6.2f} {_share(matched, test):6.2f}"
    return f"                {shares} {matched:6d} {gold:5d} {test:5d}  {crossing:5d}{tagging}"


def _summary(sums: dict[str, int]) -> str:
    """The numbers of sentences, and the shares."""
    valid = sums["valid"]
    recall, precision = (_share(sums["matched"], sums[side]) for side in ("gold", "test"))
    # EVALB divides by 0 where nothing matches; C prints nan or -nan, by the machine.
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else float("nan")
    numbers = {
        "Number of sentence": sums["sentences"],
        "Number of Error sentence": sums["error"],
        "Number of Skip  sentence": sums["skipped"],
        "Number of Valid sentence": valid,
    }
    shares = {
        "Bracketing Recall": recall,
        "Bracketing Precision": precision,
        "Bracketing FMeasure": f1,
        "Complete match": _share(sums["complete"], valid),
        "Average crossing": sums["crossing"] / valid if valid else 0.0,
        "No crossing": _share(sums["no_crossing"], valid),
        "2 or less crossing": _share(sums["two_crossing"], valid),
        "Tagging accuracy": _share(sums["tags"], sums["words"]),
    }
    lines = [f"{name:<26}= {value:6d}" for name, value in numbers.items()]
    return "\n".join([*lines, *(f"{name:<26}= {value:6.2f}" for name, value in shares.items())])
