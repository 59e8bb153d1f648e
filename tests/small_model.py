"""A model of a few weights, and the checkpoint that a run of it would save."""

import torch

from aiayn.checkpoints import checkpoint
from aiayn.checkpoints.building import build
from aiayn.data.tokenizer import Vocabularies

MODEL = {
    "_target_": "aiayn.model.transformer.TranslationTransformer",
    "encoder_layers": 2,
    "decoder_layers": 2,
    "end": None,
    "d_model": 6,
    "dropout": 0.0,
    "attention": {
        "_target_": "aiayn.model.attention.multi_head.MultiHeadAttention",
        "_partial_": True,
        "d_model": 6,
        "heads": 3,
        "d_k": 5,
        "d_v": 7,
    },
    "feed_forward": {
        "_target_": "aiayn.model.feed_forward.relu.FeedForward",
        "_partial_": True,
        "d_model": 6,
        "d_ff": 11,
    },
    "norm": {"_target_": "aiayn.model.norm.post.PostNorm", "_partial_": True, "d_model": 6, "dropout": 0.0},
    "position": {"_target_": "aiayn.model.position.sinusoidal.SinusoidalPosition", "_partial_": True, "d_model": 6},
}


def content(vocabularies: Vocabularies, *, seed: int, step: int) -> dict:
    """What a run would save, of a model with random weights."""
    torch.manual_seed(seed)
    model = build(MODEL, **vocabularies.sizes)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    return {**checkpoint.contents({"model": MODEL}, vocabularies), "state_dict": state, "global_step": step}
