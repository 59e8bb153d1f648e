"""task=attention: what a model attends to in one sentence, as pictures and a page."""

from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from aiayn.analysis.figures import VIEWS, draw
from aiayn.analysis.page import attention as attention_data
from aiayn.analysis.page import page
from aiayn.analysis.weights import KINDS, attentions
from aiayn.checkpoints import checkpoint
from aiayn.commands.inputs import checkpoint_file, chosen_folder, evaluated_inference, run_of
from aiayn.data.tokenizer import Tokenizer
from aiayn.files import write_text
from aiayn.inference.translation import translator

LONGEST = 100  # tokens: more can be neither drawn nor read


def attention(cfg: DictConfig) -> None:
    """Write `output`/index.html, and `kind`_layer`n`_`view`.png for the chosen layers, with the chosen heads.

    Raises:
        ValueError: if there are several checkpoints, a text is none, empty or too long, a layer or head is not there,
            `output` is a file, or the model's attention is of a class that shows no weights.
    """
    sentence = as_text("sentence", cfg.sentence)
    given = None if cfg.target is None else as_text("target", cfg.target)
    file = checkpoint_file(cfg.checkpoint).absolute()
    folder = chosen_folder(cfg.output, run_of(file) / "attention")
    loaded = checkpoint.read(file)
    vocabularies = loaded.vocabularies
    source = encoded(vocabularies.source, "sentence", sentence)
    model = loaded.model(cfg.trainer.accelerator, trust=cfg.trust)
    modules = attentions(model, "weights", "heads")
    layers = numbers("layers", cfg.layers, max(map(len, modules.values())))
    heads = numbers("heads", cfg.heads, modules["encoder"][0].heads)
    if given is None:
        searcher = translator(model, vocabularies, **evaluated_inference(cfg, loaded.config))
        [[best]] = searcher.n_best([sentence], 1)
        if best.pieces > 1:
            raise ValueError(
                f"sentence must have at most {searcher.max_source_length} tokens, got {len(source)}: the model "
                f"translates it in {best.pieces} pieces, which do not attend to each other; give a shorter one."
            )
        target = best.tokens
    else:
        target = encoded(vocabularies.target, "target", given)
    data = attention_data(model, vocabularies, source, target)
    [translation] = vocabularies.target.decode([target])
    write_text(folder / "index.html", page(f"{sentence} \u2192 {translation}", data))
    for kind, name in KINDS.items():
        for layer in layers:
            for view in VIEWS if layer < len(modules[kind]) else ():
                draw(
                    folder / f"{kind}_layer{layer + 1}_{view}.png",
                    np.array(data[kind][layer]),
                    query=data["source" if kind == "encoder" else "target"],
                    key=data["target" if kind == "decoder" else "source"],
                    heads=heads,
                    title=f"{name}-attention, layer {layer + 1} of {len(modules[kind])}",
                    view=view,
                )
    print(f"{translation}\n{folder / 'index.html'}")


def as_text(key: str, value: Any) -> str:
    """What the command line gives as a text; a number is one too.

    Raises:
        ValueError: if YAML takes it for something else: null, true, a list.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{key} must be a text, got {key}={value}; quote it twice, as in {key}=\"'null'\".")
    return str(value)


def numbers(key: str, chosen: Any, count: int) -> list[int]:
    """The chosen layers or heads, counted from 0; None chooses all.

    Raises:
        ValueError: if one of them is not from 1 to `count`, or there is none.
    """
    if chosen is None:
        return list(range(count))
    found = list(chosen) if OmegaConf.is_list(chosen) else [chosen]
    if not found or not all(type(number) is int and 1 <= number <= count for number in found):
        raise ValueError(f"{key} must be numbers from 1 to {count}, as the model has them, got {key}={chosen}.")
    return [number - 1 for number in found]


def encoded(tokenizer: Tokenizer, key: str, text: str) -> list[int]:
    """The ids of a text that can be drawn.

    Raises:
        ValueError: if it has no tokens, or too many.
    """
    [ids] = tokenizer.encode([text])
    if not 1 <= len(ids) <= LONGEST:
        raise ValueError(f"{key} must have 1 to {LONGEST} tokens, got {len(ids)}; give one sentence.")
    return ids.tolist()
