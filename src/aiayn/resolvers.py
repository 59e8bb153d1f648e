"""What conf/ calls in its interpolations, as `${heads_divide:${.d_model},${.heads}}`."""

import math
import re
from contextlib import suppress
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from aiayn.files import absolute, new_folder
from aiayn.identity import row
from aiayn.schema import PROJECT


def heads_divide(d_model: int, heads: int) -> int:
    """`d_model / heads`, the default of `d_k` and `d_v` (section 3.2.2).

    Raises:
        ValueError: if heads does not divide d_model.
    """
    if heads < 1:
        raise ValueError(f"model.heads must be at least 1, got {heads}.")
    if d_model % heads:
        raise ValueError(
            f"model.heads must divide model.d_model, got heads={heads}, d_model={d_model}; "
            f"choose another number of heads, or set model.d_k and model.d_v."
        )
    return d_model // heads


def two_thirds(d_ff: int) -> int:
    """The width of a gated feed-forward network that has about the weights of a plain one of `d_ff`: a multiple of 8.

    Of the paper's 2048 it is 1368, so that three maps of it have 0.2 % more weights than two of 2048.
    """
    return max(8, 8 * round(d_ff / 12))


def scaled(size: str, value: int, *, _root_: Any) -> int:
    """The paper's value of a size at the chosen scale: `${width:512}` is 512, or 128 with `scale=tiny`.

    Raises:
        ValueError: if the scale does not divide it.
    """
    divisor = _divisor(size, _root_)
    if value % divisor:
        raise ValueError(f"scale.{size}={divisor} does not divide {value}; choose another scale.{size}.")
    return value // divisor


def scaled_heads(value: int, *, _root_: Any) -> int:
    """The paper's number of heads at the chosen scale, one at least."""
    return max(1, value // _divisor("heads", _root_))


def scaled_head_width(value: int, *, _root_: Any) -> int:
    """The paper's d_k or d_v at the chosen scale: there are fewer heads, so each is wider.

    Raises:
        ValueError: if that is no whole number.
    """
    width, heads = (_divisor(size, _root_) for size in ("width", "heads"))
    if value * heads % width:
        raise ValueError(f"scale.width={width} and scale.heads={heads} make no whole number of {value}; choose others.")
    return value * heads // width


def peak_rate(rate: float, d_model: int, warmup_steps: int) -> float:
    """The `learning_rate_scale` with which the rate of section 5.3 is so high at its highest, after the warm-up.

    Raises:
        ValueError: if it is not above 0.
    """
    if not rate > 0:
        raise ValueError(f"training.learning_rate_scale: a peak must be above 0, got {rate}.")
    return rate * math.sqrt(d_model * warmup_steps)


def _divisor(size: str, root: Any) -> int:
    divisor = root.scale[size]
    if not isinstance(divisor, int) or divisor < 1:
        raise ValueError(f"scale.{size} must be a whole number of at least 1, got {divisor}.")
    return divisor


def given(key: str, *, _root_: Any) -> Any:
    """The value of a key that must say something, as `outputs`: without it a folder would be made at the root.

    Raises:
        ValueError: if it is empty.
    """
    if not (value := OmegaConf.select(_root_, key)):
        raise ValueError(f"{key} is empty; give {key}=..., or leave it as it is in conf/.")
    return value


@cache
def run_folder(path: str, now: str, subdir: str | None) -> str:
    """The folder of a single run. One that is named by the time is made here, so that it is this process's alone.

    A task that is no run, where Hydra keeps no copy of the config in a `subdir`, has none.
    """
    if subdir is None:
        return "."
    place = absolute(str(path))
    if place.name == now:
        with suppress(OSError):  # Hydra makes it too, and says why it cannot
            place = new_folder(place)
    return str(place)


def own_help(*, _root_: Any) -> str:
    """What begins the help where a task is named: what its file says that it does, and its own keys, as they are there.

    It is for Hydra's template, in which `$$` stands for `$`.
    """
    hydra = _root_.hydra
    file = Path("task", f"{hydra.runtime.choices.task}.yaml")
    places = [Path(source.path, file) for source in hydra.runtime.config_sources if source.schema == "file"]
    found = [place for place in places if place.is_file()]
    if not found or not any(override.startswith("task=") for override in hydra.overrides.task):
        return ""
    lines = found[0].read_text().splitlines()
    about = list(takewhile(lambda line: line.startswith("#"), lines))
    keys, own = [], True
    for line in lines[len(about) :]:
        if key := re.match(r"(\w+):", line):
            own = key[1] not in ("defaults", "task", "hydra")
        if own or line.startswith("#"):
            keys.append(line)
    says = "\n".join(line.removeprefix("# ") for line in about if "@package" not in line)
    listed = "\n".join(keys).strip()
    parts = [
        f"task={file.stem}: {says}",
        *([f"Its keys, key=value; ??? has to be given:\n\n{listed}"] if listed else []),
    ]
    return "".join(f"{part}\n\n" for part in parts).replace("$", "$$")


def choices(group: str = "") -> str:
    """The options of all config groups, a line for each, without the types (`schema`), which nobody chooses."""
    loader, lines = GlobalHydra.instance().config_loader(), []
    for name in sorted(loader.list_groups(group)):
        below = f"{group}/{name}".lstrip("/")
        if below != "hydra":
            options = [option for option in loader.get_group_options(below) if option != "schema"]
            lines += [f"{below}: {', '.join(options)}"] if options else []
            lines += filter(None, [choices(below)])
    return "\n".join(lines)


def register() -> None:
    """Make them known to OmegaConf."""
    OmegaConf.register_new_resolver("heads_divide", heads_divide, replace=True)
    OmegaConf.register_new_resolver("two_thirds", two_thirds, replace=True)
    OmegaConf.register_new_resolver("peak_rate", peak_rate, replace=True)
    OmegaConf.register_new_resolver("row", row, replace=True)
    OmegaConf.register_new_resolver("absolute", lambda path: str(absolute(path)), replace=True)
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("given", given, replace=True)
    OmegaConf.register_new_resolver("own_help", own_help, replace=True)
    OmegaConf.register_new_resolver("choices", choices, replace=True)
    for size in ("width", "depth", "steps"):
        OmegaConf.register_new_resolver(size, partial(scaled, size), replace=True)
    OmegaConf.register_new_resolver("heads", scaled_heads, replace=True)
    OmegaConf.register_new_resolver("head_width", scaled_head_width, replace=True)
    OmegaConf.register_new_resolver("project", lambda folder: str(PROJECT / folder), replace=True)
