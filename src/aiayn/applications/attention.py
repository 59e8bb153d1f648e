"""task=attention: what a model attends to in one sentence, as pictures and a page."""

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from aiayn.analysis.figures import VIEWS, draw
from aiayn.analysis.page import attention as shown
from aiayn.analysis.page import page
from aiayn.data.tokenizer import Tokenizer
from aiayn.files import write_text
from aiayn.inference import checkpoint
from aiayn.inference.translation import translator
from aiayn.tasks.inputs import checkpoint_file, evaluated_inference

LONGEST = 100  # tokens: more can be neither drawn nor read
KINDS = {  # their names in pictures, and which sides query and key are of
    "encoder": ("encoder self-attention", "source", "source"),
    "decoder": ("decoder self-attention", "target", "target"),
    "cross": ("attention of the decoder to the encoder", "target", "source"),
}


def attention(cfg: DictConfig) -> None:
    """Write `output`/index.html, and `kind`_layer`n`_`view`.png for the chosen layers, with the chosen heads.

    Raises:
        ValueError: if there are several checkpoints, a text is empty or too long, or a layer or head is not there.
    """
    loaded = checkpoint.read(checkpoint_file(cfg.checkpoint))
    tokenizer, sizes = loaded.tokenizer, loaded.config["model"]
    layers = numbers("layers", cfg.layers, sizes["layers"])
    heads = numbers("heads", cfg.heads, sizes["heads"])
    sentence = str(cfg.sentence)
    source = encoded(tokenizer, "sentence", sentence)
    model = loaded.model(cfg.trainer.accelerator)
    if cfg.target is None:
        searcher = translator(model, tokenizer, **evaluated_inference(cfg, loaded.config))
        target = searcher.n_best([sentence], 1)[0][0].tokens
    else:
        target = encoded(tokenizer, "target", str(cfg.target))
    data = shown(model, tokenizer, source, target)
    output = Path(cfg.output)
    [translation] = tokenizer.decode([target])
    write_text(output / "index.html", page(f"{sentence} \u2192 {translation}", data))
    for kind, (name, query, key) in KINDS.items():
        for layer in layers:
            for view in VIEWS:
                draw(
                    output / f"{kind}_layer{layer + 1}_{view}.png",
                    np.array(data[kind][layer]),
                    query=data[query],
                    key=data[key],
                    heads=heads,
                    title=f"{name}, layer {layer + 1} of {sizes['layers']}",
                    view=view,
                )
    print(f"{translation}\n{output / 'index.html'}")


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
