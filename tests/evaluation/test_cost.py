import torch
from torch.utils.flop_counter import FlopCounterMode

from aiayn.evaluation.cost import training_flops
from aiayn.inference.checkpoint import build_model

SIZES = {"layers": 2, "d_model": 14, "d_ff": 22, "heads": 3, "d_k": 5, "d_v": 7}


def test_training_flops_are_those_that_torch_counts() -> None:
    parts = {
        "attention": ("attention.MultiHeadAttention", {key: SIZES[key] for key in ("d_model", "heads", "d_k", "d_v")}),
        "feed_forward": ("feed_forward.FeedForward", {key: SIZES[key] for key in ("d_model", "d_ff")}),
        "norm": ("norm.PostNorm", {"d_model": 14, "dropout": 0.0}),
        "position": ("position.SinusoidalPosition", {"d_model": 14}),
    }
    nodes = {
        name: {"_target_": f"aiayn.model.{path}", "_partial_": True, **sizes} for name, (path, sizes) in parts.items()
    }
    model = build_model({"layers": 2, "d_model": 14, "dropout": 0.0, **nodes}, vocab_size=31)
    source, target = torch.randint(4, 31, (3, 17)), torch.randint(4, 31, (3, 13))
    with FlopCounterMode(display=False) as counter:
        model(source, target).sum().backward()
    ours = training_flops(
        **SIZES,
        vocab_size=31,
        source_tokens=3 * 17,
        target_tokens=3 * 13,
        source_length=17,
        target_length=2 * 13,  # torch counts the masked half of the decoder's own attention too
    )
    # Flash attention computes the scores again in its backward pass, which torch counts; and 5 of 510 tokens' worth.
    assert abs(ours / counter.get_total_flops() - 1) < 0.1
