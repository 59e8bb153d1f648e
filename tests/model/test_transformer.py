from collections.abc import Callable

import pytest
import torch
from conftest import composed, logits, pairs
from omegaconf import OmegaConf
from torch import Tensor, nn

from aiayn.checkpoints import building
from aiayn.model.model import Model
from aiayn.model.position.learned import LearnedPosition
from aiayn.model.position.sinusoidal import SinusoidalPosition

Build = Callable[..., Model]


def torch_names(ours: dict[str, Tensor], *, heads: int) -> dict[str, Tensor]:
    """The state dict of our layers under the names of torch.nn.Transformer."""
    names = {
        "self_attention.output.": "self_attn.out_proj.",
        "cross_attention.output.": "multihead_attn.out_proj.",
        "feed_forward.inner.": "linear1.",
        "feed_forward.outer.": "linear2.",
        "self_attention_norm.norm.": "norm1.",
        "cross_attention_norm.norm.": "norm2.",
    }
    theirs = {}
    for name, weight in ours.items():
        if name.startswith(("encoder.", "decoder.")):
            last = "norm2." if name.startswith("encoder.") else "norm3."
            for our, their in (names | {"feed_forward_norm.norm.": last}).items():
                name = name.replace(f".{our}", f".{their}")
            theirs[name] = weight
    for ours, their in (("self_attention", "self_attn"), ("cross_attention", "multihead_attn")):
        for query in [name for name in theirs if f".{ours}.query." in name]:
            kind = query.rpartition(".")[2]
            memory = theirs.pop(query.replace(".query.", ".memory.")).unflatten(0, (heads, 2, -1))
            stacked = [theirs.pop(query), *(memory[:, part].flatten(0, 1) for part in (0, 1))]
            theirs[query.replace(f"{ours}.query.{kind}", f"{their}.in_proj_{kind}")] = torch.cat(stacked)
    return theirs


def torch_transformer(model: Model, *, d_model: int, heads: int, d_ff: int) -> nn.Transformer:
    """torch.nn.Transformer with our weights; the paper has no normalisation after the last layer, theirs adds one."""
    theirs = nn.Transformer(d_model, heads, 2, 2, d_ff, dropout=0.0, activation="relu", batch_first=True)
    theirs.encoder.norm = theirs.decoder.norm = None
    theirs.load_state_dict(torch_names(model.state_dict(), heads=heads))
    return theirs.eval()


def test_output_equals_torch_nn_transformer(build: Build) -> None:
    model = build(d_model=22, heads=2, d_k=11, d_v=11, d_ff=31)
    theirs = torch_transformer(model, d_model=22, heads=2, d_ff=31)
    source, target = torch.randint(1, 29, (3, 13)), torch.randint(1, 29, (3, 11))
    source[1, 7:] = 0
    embed = model.embedding.weight * 22**0.5
    states = theirs(
        model.source_position(embed[source]),
        model.target_position(embed[target]),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(11),
        src_key_padding_mask=source == 0,
        memory_key_padding_mask=source == 0,
    )
    torch.testing.assert_close(model(pairs(source, target)).features, states, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(model, source, target), states @ model.embedding.weight.T, atol=1e-5, rtol=1e-5)


def test_a_filler_pair_without_target_tokens_stays_finite(build: Build) -> None:
    model = build()
    logits(model, torch.tensor([[3, 0], [5, 3]]), torch.zeros(2, 7, dtype=torch.long)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("position", [SinusoidalPosition, LearnedPosition])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("sizes", [{}, {"layers": 1, "encoder_layers": 3}, {"kv_heads": 1}, {"source_vocab_size": 31}])
def test_cached_decoding_equals_uncached(
    build: Build, position: type[nn.Module], beams: int, sizes: dict[str, int]
) -> None:
    model = build(position=position, **sizes)
    source = torch.randint(1, 29, (2, 13))
    source[0, 7:] = 0
    targets = torch.randint(1, 29, (2, beams, 11))
    targets[:, :, 0] = 2  # BOS; the first step has one beam, which all others go on from
    state = model.start(source)
    steps = [model.step(targets[:, :1, 0], state).expand(-1, beams, -1)]
    steps += [model.step(targets[:, :, i], state) for i in range(1, 11)]
    for beam in range(beams):
        expected = logits(model, source, targets[:, beam])
        torch.testing.assert_close(torch.stack(steps, 2)[:, beam], expected, atol=1e-5, rtol=1e-5)


def test_layers_do_not_share_weights(build: Build) -> None:
    model = build(layers=3, position=LearnedPosition)
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    assert len(set(pointers)) == len(pointers) == 1 + 2 + 3 * 14 + 3 * 22


def test_one_matrix_embeds_and_predicts(build: Build) -> None:
    model = build()
    assert [name for name, parameter in model.named_parameters() if 29 in parameter.shape] == ["embedding.weight"]
    features = torch.randn(3, 22)
    torch.testing.assert_close(model.project(features), features @ model.embedding.weight.T)


def test_embeddings_start_with_standard_deviation_one_after_scaling(build: Build) -> None:
    model = build(vocab_size=997)
    assert (model.embedding.weight * 22**0.5).std().item() == pytest.approx(1, rel=0.03)


def test_d_k_and_d_v_differ_from_each_other_and_from_d_model_over_heads(build: Build) -> None:
    model = build(d_model=22, heads=3, d_k=5, d_v=7)
    assert logits(model, torch.ones(2, 3, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)).shape == (2, 5, 29)


def test_dropout_falls_on_sublayers_and_embedding_sums_only(build: Build) -> None:
    model = build(dropout=0.3, layers=2)
    dropouts = {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    rates = {name: module.p for name, module in dropouts.items() if module.p}
    assert set(rates.values()) == {0.3}
    assert len(rates) == 1 + 2 * 2 + 2 * 3
    source, target = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    assert not torch.equal(logits(model.train(), source, target), logits(model, source, target))
    assert torch.equal(logits(model.eval(), source, target), logits(model, source, target))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"vocab_size": 0}, r"model\.vocab_size must be at least 1, got 0"),
        ({"layers": 0}, r"model\.encoder_layers must be at least 1, got 0"),
        ({"layers": 0, "encoder_layers": 1}, r"model\.decoder_layers must be at least 1, got 0"),
        ({"dropout": 1.0}, r"model\.dropout must be in \[0, 1\), got 1\.0"),
        ({"d_model": 21}, r"model\.d_model must be even"),
    ],
)
def test_an_illegal_size_is_named(build: Build, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**sizes)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), 1071409.5442674211),
        (("model/norm=pre",), 1087921.5442674211),
        (("model/position=learned", "model.kv_heads=2"), 4532920.001959376),
    ],
)
def test_a_seed_draws_the_weights_that_it_always_drew(overrides: tuple[str, ...], expected: float) -> None:
    """Else a row that is trained today could not be compared with one of last month, seed by seed."""
    config = OmegaConf.to_container(composed("model=tiny", *overrides).model)
    torch.manual_seed(1)
    model = building.build(config, vocab_size=101)  # type: ignore[arg-type]
    places = [torch.arange(1, one.numel() + 1).view_as(one) for one in model.parameters()]
    found = sum((one.double() * place).sum().item() for one, place in zip(model.parameters(), places, strict=True))
    assert found == pytest.approx(expected, rel=1e-6)
