"""What is to know about a table's figures, in lines: on what they were measured, how, and which runs are not there."""

from collections.abc import Sequence
from itertools import pairwise

from aiayn.evaluation.significance import FEWEST_PAIRS
from aiayn.identity import leaves, settings
from aiayn.report.rows import ONE_SEED, Row, base_of, devices, is_scaled, measured, name_of
from aiayn.report.table import (
    AS_IN_PAPER,
    Notes,
    each,
    has_paper,
    is_less_better,
    objective_of,
    shown_scores,
)
from aiayn.runs.run import HELD_OUT, Run

APART = "with 95 % interval, over sentences (bootstrap, 1000 resamples)"
WELCH, PAIRS = "Welch's t", f"in pairs, where rows have the same {FEWEST_PAIRS} or more"
P_VALUES = "of {} against base, two-sided, corrected for {} rows (Holm)"
SENTENCES = "; of single runs, by paired bootstrap over sentences and not over seeds"
MULTIPLY_ADDS = "millions for each target token, forward and backward, with the source tokens that belong to it"
STEP_SECONDS, ON_P100 = "seconds of an optimizer step, on the devices below", "; the paper's on 8 P100"
PAPER_BLEU = "counted by tensor2tensor's script (tokenised, compounds split)"
FRENCH = "; how English-French was counted is not known"
UNLIKE = "; ours by sacreBLEU (13a): half a point or more may lie between them for that alone"
SCALED = (
    "smaller twins of the paper's rows, on other data: compare the order of rows, not the figures themselves; "
    "the plots show distances from base"
)
HELD_OUT_NOTE = (
    "of a sentence, on average over dev and all test sets, in nats, without label smoothing; greater is better"
)
MOST_LISTED = 5  # names in a line


def notes(rows: Sequence[Row], command: str) -> Notes:
    """What is to know about the figures: what they were measured on, how, with what, and what is not there."""
    runs = [(row, run) for row in rows for run in row.runs]

    base = base_of(rows)
    objective = objective_of(rows)
    name = name_of(rows, objective)
    apart = f"from {base.name}, {interval_of(rows)}" if any(objective in row.apart for row in rows) else ""
    tested = [row for row in rows if objective in row.p_values]
    p_values = P_VALUES.format(name, len(tested)) + SENTENCES * (len(base.done) == 1)
    beside_paper = any(row.paper("bleu") is not None for row in rows)
    scores = [key for key in shown_scores(rows) if key != "perplexity"]
    has_french = any((row.config.get("data") or {}).get("target_language") == "fr" for row in rows)
    has_steps = any(row.paper("step_seconds") for row in rows)
    is_like = beside_paper and not is_scaled(rows) and any(row.bleu_as_in_paper for row in rows)
    found = [
        ("command", command),
        ("measured on", measured_on(rows)),
        *((name_of(rows, key), signatures(rows, key)) for key in scores),
        ("PPL", "of the references, per target piece with EOS, without label smoothing"),
        (name_of(rows, HELD_OUT), HELD_OUT_NOTE if any(HELD_OUT in row.samples for row in rows) else ""),
        ("\u00b1", "standard deviation over seeds" if any(len(row.done) > 1 for row in rows) else ""),
        (AS_IN_PAPER, signatures(rows, "bleu_paper") if is_like else ""),
        ("BLEU paper", PAPER_BLEU + UNLIKE * (not is_like) + FRENCH * has_french if beside_paper else ""),
        (f"{name} - base", apart),
        ("p (Holm)", p_values if tested else ""),
        ("published", each(published(row) for row in rows)),
        ("mult-adds", MULTIPLY_ADDS if any(row.figure("multiply_adds") for row in rows) else ""),
        ("s/step", (STEP_SECONDS + ON_P100 * has_steps) if any(row.figure("step_seconds") for row in rows) else ""),
        ("scale", SCALED if is_scaled(rows) and has_paper(rows) else ""),
        ("commit", each(str(run.result.get("git_commit") or "") for _, run in runs)),
        ("devices", each(devices(run) for row in rows for run in row.done)),
    ]
    found += states(runs)
    return [(label, text) for label, text in found if text]


def interval_of(rows: Sequence[Row]) -> str:
    """Of what the intervals of the distances from base are, and what is not in them."""
    base, objective = base_of(rows), objective_of(rows)
    beside = [row for row in rows if objective in row.apart]
    several = [row for row in beside if min(len(row.done), len(base.done)) > 1]
    paired = [row for row in several if row.same_seeds(base) and len(row.done) >= FEWEST_PAIRS]
    ways = [*[WELCH] * (len(several) > len(paired)), *[PAIRS] * bool(paired)]
    told = APART + f" and seeds ({'; '.join(ways)})" * bool(ways) + "; less is better" * is_less_better(rows, objective)
    return told + f"; {ONE_SEED}" * (len(several) < len(beside))


def published(row: Row) -> str:
    """What others report of a row, and where; empty where the row does not say."""
    said = row.config.get("published") or {}
    if not said:
        return ""
    without = "" if said.get("without") is None else f", without {said['without']}"
    seeds = "" if said.get("seeds") is None else f", seeds: {said['seeds']}"
    system = f", {said['system']}" if said.get("system") else ""
    return f"{row.name}: {said.get('metric')} {said.get('with')}{without} ({said.get('paper')}{system}{seeds})"


def states(runs: Sequence[tuple[Row, Run]]) -> Notes:
    """Which runs are not what was planned, or not there, or stale: a line for each way and reason, with their names."""
    about: dict[tuple[str, str], list[str]] = {}
    for row, run in runs:
        state, other = run.state, differences(run)
        if state in ("done", "of another checkpoint") and other:
            said = "other settings", f" ran with {', '.join(other[:3])}{', ...' if other[3:] else ''}"
        elif state == "done" and run.result.get("stopped"):
            said = "stopped early", f", at step {run.result.get('steps')}: {run.result['stopped']}"
        elif state != "done":
            said = state, f": {run.error}" if state == "failed" and run.error else ""
        else:
            continue
        about.setdefault(said, []).append(row.called(run))
    for row, run in runs:
        if run.stale:
            about.setdefault(("stale", f": {', '.join(run.changed)} changed since"), []).append(row.called(run))
    return [(label, f"{listed(named, len(runs))}{reason}") for (label, reason), named in about.items()]


def differences(run: Run) -> list[str]:
    """Where a finished run's own settings are not those that are planned for its folder: `training.max_steps=10`.

    An evaluation has the model, the data and the training of its checkpoint, whatever is planned.
    """
    actual = run.result.get("config") or {}
    if run.state == "of another checkpoint":
        return [f"checkpoint={actual.get('checkpoint')}"]
    planned, known = (dict(leaves(config)) for config in (run.config, actual))
    mine, theirs = settings(run.config), settings(actual)
    part = "inference." if run.config.get("checkpoint") else ""
    keys = (key for key in {**mine, **theirs} if key in known and key.startswith(part))
    return [
        f"{key}={known[key]}" for key in keys if mine.get(key) != theirs.get(key) and planned.get(key) != known[key]
    ]


def listed(named: Sequence[str], every: int) -> str:
    """Runs by their names, where these are few, or else some of them and the number of the others.

    Args:
        named: At least one.
        every: How many runs there are.
    """
    if len(named) <= MOST_LISTED:
        return ", ".join(named)
    return f"all {every} runs" if len(named) == every else f"{', '.join(named[:3])} and {len(named) - 3} more"


def signatures(rows: Sequence[Row], key: str) -> str:
    """How a score was counted, and whether less of it is better."""
    counted = each(run.said(*measured(run, row), key, "signature") for row in rows for run in row.runs)
    return counted + "; less is better" * bool(counted and is_less_better(rows, key))


def measured_on(rows: Sequence[Row]) -> str:
    """On what the figures were measured: `dev of wmt14_ende, checkpoint: last`."""
    runs = [(row, run) for row in rows for run in row.done] or [(row, run) for row in rows for run in row.runs]
    return each(place(row, run) for row, run in runs)


def place(row: Row, run: Run) -> str:
    """On what a run's figures were measured; of an averaged checkpoint, what was averaged."""
    checkpoint, split = measured(run, row)
    data = (run.result.get("config") or run.config).get("data") or {}
    averaged = f", of {steps_averaged(run)}" if checkpoint == "averaged" and run.averaged_steps else ""
    return f"{split} of {data.get('name', '?')}, checkpoint: {checkpoint}{averaged}"


def steps_averaged(run: Run) -> str:
    """The steps whose weights were averaged, in words, and whether they are fewer than the run asked for."""
    steps = run.averaged_steps
    gaps = {later - earlier for earlier, later in pairwise(steps)}
    text = f"steps {', '.join(f'{step:,}' for step in steps)}"
    if len(steps) > 2 and len(gaps) == 1:
        text = f"{len(steps)} steps from {steps[0]:,} to {steps[-1]:,}, every {gaps.pop():,}"
    asked = ((run.result.get("config") or run.config).get("training") or {}).get("keep_checkpoints")
    fewer = isinstance(asked, int) and len(steps) < asked
    return f"{text} ({len(steps)} only, {asked} were asked for)" if fewer else text
