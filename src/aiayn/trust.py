"""What a config that was found on disk may name: it would be imported and called, and a stranger may have written it.

That is what we made for the place, and what the reader's own list adds: `trust=[mypackage]` on the command line,
`aiayn.load(..., trust=["mypackage"])`. No file adds to the list. What one's own config names at training is one's own
code, and is not asked about here.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_object

CONF = Path(__file__).parents[2] / "conf"


@cache
def ours(group: str) -> frozenset[str]:
    """What of this project the files of a group of conf/ name: that, and nothing else of it, has its place there."""
    return frozenset(
        target
        for file in (CONF / group).glob("*.yaml")
        for target in re.findall(r"_target_: *(aiayn\.[\w.]+)", file.read_text(encoding="utf-8"))
    )


def targets(config: Any) -> Iterator[str]:
    """Everything that a resolved config would call."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "_target_":
                yield str(value)
            else:
                yield from targets(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from targets(value)


def check_named(config: Any, *, ours: Callable[[str], bool], trust: Collection[str], what: str) -> None:
    """Refuse a stored config that would call anything else than what is ours or trusted; nothing else is imported.

    Args:
        config: Plain containers without interpolations.
        ours: Whether a dotted path is one of ours that has its place there.
        trust: The reader's packages, whose own definitions count and not what they import; or whole dotted paths.
        what: Whose config it is, for the message.

    Raises:
        ValueError: with what it names, and the remedy.
    """
    trust = trust or ()
    if isinstance(trust, str):
        raise ValueError(f"trust must be a list of packages, got {trust}; give trust=[{trust}].")
    if "${" in json.dumps(config, default=str):
        raise ValueError(f"{what} has an interpolation, and those of finished runs are resolved.")
    others = [target for target in targets(config) if target not in trust and not ours(target)]
    strange = [target for target in others if _package(target, trust) is None]
    if strange:
        # Of torch its layers are enough; the rest of it reads files.
        roots = ["torch.nn" if name.startswith("torch.nn.") else name.partition(".")[0] for name in strange]
        listed = ",".join(dict.fromkeys([*trust, *roots]))
        never = {"aiayn", "torch", *sys.stdlib_module_names} & set(roots)  # no remedy for what no experiment needs
        remedy = "" if never else f"; if you trust its code, give trust=[{listed}]"
        raise ValueError(f"{what} names {strange[0]}; from a file only what is ours there is accepted{remedy}.")
    for target in others:
        _check_home(target, str(_package(target, trust)), what)


def _package(target: str, trust: Collection[str]) -> str | None:
    """The trusted package that a dotted path leads into."""
    return next((name for name in trust if target.startswith(f"{name}.")), None)


def _check_home(target: str, package: str, what: str) -> None:
    """Refuse what a trusted package has imported from elsewhere: `mypackage.os.rmdir` is not its own."""
    try:
        found = get_object(target)
    except (ImportError, HydraException, SystemExit) as error:
        there = find_spec(package.partition(".")[0]) is not None
        remedy = "mend it" if there else f"put the folder that holds {package} on PYTHONPATH"
        raise ValueError(
            f"{what} names {target}, which cannot be imported: {' '.join(str(error).split())[:300]}; {remedy}."
        ) from error
    home = getattr(found, "__module__", None) or "no module"
    if not f"{home}.".startswith(f"{package}."):
        raise ValueError(f"{what} names {target}, which is defined in {home} and not in {package}; name it there.")


def check_corpus(corpus: Any, *, trust: Collection[str]) -> None:
    """Refuse with a ValueError a stored corpus that is none of ours and not trusted either."""
    if not isinstance(corpus, Mapping) or not isinstance(corpus.get("_target_"), str):
        raise ValueError("the stored config names no corpus; name the data on the command line: data=...")
    check_named(corpus, ours=ours("data").__contains__, trust=trust, what="the stored data")
