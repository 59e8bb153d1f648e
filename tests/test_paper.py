"""The figures of the paper that the code must reproduce without training."""

from collections.abc import Callable

import pytest
import torch

from aiayn.model.transformer import Transformer

Build = Callable[..., Transformer]

# Table 3 (arXiv:1706.03762): the column "params", in millions. Rows (A) leave it empty: it is that of base, since the
# heads share d_model. The column fits a shared matrix of 40,960 rows; the text's "about 37000" would give 63 for base.
BASE = {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "d_k": 64, "d_v": 64}
VOCAB_SIZE = 40_960
TABLE_3 = {
    "base": ({}, 65),
    "A, 1 head": ({"heads": 1, "d_k": 512, "d_v": 512}, 65),
    "A, 4 heads": ({"heads": 4, "d_k": 128, "d_v": 128}, 65),
    "A, 16 heads": ({"heads": 16, "d_k": 32, "d_v": 32}, 65),
    "A, 32 heads": ({"heads": 32, "d_k": 16, "d_v": 16}, 65),
    "B, d_k 16": ({"d_k": 16}, 58),
    "B, d_k 32": ({"d_k": 32}, 60),
    "C, N 2": ({"layers": 2}, 36),
    "C, N 4": ({"layers": 4}, 50),
    "C, N 8": ({"layers": 8}, 80),
    "C, d_model 256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    "C, d_model 1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    "C, d_ff 1024": ({"d_ff": 1024}, 53),
    "C, d_ff 4096": ({"d_ff": 4096}, 90),
}


def parameters(build: Build, vocab_size: int, sizes: dict[str, int]) -> int:
    with torch.device("meta"):
        model = build(vocab_size=vocab_size, **sizes)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("differences", "millions"), TABLE_3.values(), ids=TABLE_3.keys())
def test_parameters_equal_table_3(build: Build, differences: dict[str, int], millions: int) -> None:
    assert round(parameters(build, VOCAB_SIZE, BASE | differences) / 1e6) == millions


def test_parameters_of_the_big_model_fit_a_smaller_vocabulary(build: Build) -> None:
    big = BASE | {"d_model": 1024, "d_ff": 4096, "heads": 16}
    assert round(parameters(build, 35_800, big) / 1e6) == 213
