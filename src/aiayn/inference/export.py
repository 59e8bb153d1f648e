"""A finished model for other programs: CTranslate2's format, which decodes fast on CPUs, and safetensors.

Both are folders that suffice alone: weights, `tokenizer.model` (SentencePiece's own file; `target_tokenizer.model` too,
where each side has its own), and `aiayn.json` with the run's config. CTranslate2 computes the same function. Where its
layout is another one, the weights are written for it:

- Positions are tables: its own sinusoids have other rates, and all sines come first. So there is a greatest length,
  that of the model's table: 1024, or `model.position.max_length`.
- Queries, keys and values have one width. Where d_k and d_v differ, the narrower ones are filled up with zeros, which
  add nothing to a product; the scale of the scores is written out, since it would follow from the width otherwise.
- Biases of the logits forbid PAD, UNK and BOS, which our search never takes either; so no program that uses the folder
  can predict them. Their probability goes to the other tokens, which our search leaves with them.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from aiayn.checkpoints.checkpoint import FORMATS, MANIFEST, WEIGHTS, Checkpoint, weights_hash
from aiayn.data.tokenizer import BOS, EOS, PAD, UNK, Vocabularies
from aiayn.model.attention.multi_head import MultiHeadAttention
from aiayn.model.dropout import Dropout
from aiayn.model.feed_forward.gated import GatedFeedForward
from aiayn.model.feed_forward.geglu import GEGLU
from aiayn.model.feed_forward.gelu import GELUFeedForward
from aiayn.model.feed_forward.relu import FeedForward
from aiayn.model.feed_forward.swiglu import SwiGLU
from aiayn.model.layer import DecoderLayer, EncoderLayer, Stack
from aiayn.model.norm.post import PostNorm
from aiayn.model.norm.pre import PreNorm
from aiayn.model.position.learned import LearnedPosition
from aiayn.model.position.sinusoidal import SinusoidalPosition
from aiayn.model.transformer import TranslationTransformer

if TYPE_CHECKING:  # of the extra `export`, which only those need who export
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.model_spec import LayerSpec

FORBIDDEN = -1e4  # a logit that no other comes near; float16 can hold it
NORMS = nn.LayerNorm, nn.RMSNorm
ACTIVATIONS = {FeedForward: "RELU", GELUFeedForward: "GELU", GEGLU: "GELU", SwiGLU: "SWISH"}  # by CTranslate2's names
# Modules whose computation CTranslate2 has too, and those that hold them together.
KNOWN = {
    *(TranslationTransformer, Stack, EncoderLayer, DecoderLayer, MultiHeadAttention, PostNorm, PreNorm),
    *(SinusoidalPosition, LearnedPosition, Dropout, nn.ModuleList, nn.Embedding, nn.Linear, *NORMS, *ACTIVATIONS),
}


def write_safetensors(loaded: Checkpoint, folder: Path) -> None:
    """Write the weights, bit for bit, and what belongs to them; `checkpoint.read` reads the folder.

    Args:
        loaded: Any model.
        folder: Exists.
    """
    weights = {name: value.contiguous() for name, value in loaded.weights.items()}
    (folder / WEIGHTS).write_bytes(save(weights))  # not by `save_file`: the file would be for its owner's eyes only
    _write_rest(loaded, folder, {"format": "safetensors"})


def write_ctranslate2(
    loaded: Checkpoint, folder: Path, *, quantization: str | None = None, trust: Collection[str] = ()
) -> None:
    """Write a model of CTranslate2; `ctranslate2_decoder.load` reads the folder.

    Args:
        loaded: A model of the paper's parts.
        folder: Exists.
        quantization: How the weights are kept, as CTranslate2 names it: "int8", "float16", ...; None: float32.
        trust: As for `Checkpoint.model`; what CTranslate2 cannot do is said of others too.

    Raises:
        ValueError: if CTranslate2 has no such quantization, or no counterpart to a part of the model.
    """
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

    if quantization not in (None, *ACCEPTED_MODEL_TYPES):
        raise ValueError(f"quantization must be one of {', '.join(ACCEPTED_MODEL_TYPES)} or null, got {quantization}.")
    spec = specification(loaded.model(trust=trust), loaded.vocabularies)
    longest = len(spec.decoder.position_encodings.encodings)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))
    _write_rest(loaded, folder, {"format": "ctranslate2", "longest": longest})


def _write_rest(loaded: Checkpoint, folder: Path, facts: dict[str, Any]) -> None:
    """Tokenizers and manifest, which marks the folder as an export."""
    for name, model in loaded.vocabularies.models.items():
        (folder / f"{name}.model").write_bytes(model)
    manifest = {
        **facts,
        "weights_hash": weights_hash(folder / FORMATS[facts["format"]]),
        "global_step": loaded.step,
        "tokenizer_hash": loaded.vocabularies.hash,
        "config": loaded.config,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def specification(model: TranslationTransformer, vocabularies: Vocabularies) -> "TransformerSpec":
    """The model as CTranslate2 describes one, in float32; quantizing it may change the model's own weights.

    Raises:
        ValueError: if CTranslate2 has no counterpart to a part of the model.
    """
    strange = {type(module).__name__ for module in model.modules() if type(module) not in KNOWN}
    # CTranslate2 normalises queries and keys, and looks through windows, in decoders alone.
    for key, lacking in {"query_norm": "qk_norm", "window": "window"}.items():
        if any(getattr(module, key, None) is not None for module in model.modules()):
            strange.add(f"attention's {lacking}")
    if strange:
        raise ValueError(
            f"the model has parts that CTranslate2 does not know: {', '.join(sorted(strange))}; "
            "format=safetensors takes every model."
        )
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    encoder: Any = model.encoder.layers
    decoder: Any = model.decoder.layers
    depths = len(encoder), len(decoder)
    ends: list[Any] = [stack.end for stack in (model.encoder, model.decoder)]
    pre_norm = isinstance(encoder[0].self_attention_norm, PreNorm)
    if any((end is not None) != pre_norm for end in ends):
        raise ValueError(
            "CTranslate2 knows a final norm behind PreNorm, and none behind PostNorm; set model.end so, or choose "
            "format=safetensors, which takes every model."
        )
    if len(kinds := {type(module) for module in model.modules() if isinstance(module, NORMS)}) > 1:
        raise ValueError(
            "CTranslate2 knows models with norms of one kind, not LayerNorm and RMSNorm together; "
            "format=safetensors takes every model."
        )
    feed_forward = encoder[0].feed_forward
    spec = TransformerSpec.from_config(
        depths,
        encoder[0].self_attention.heads,
        pre_norm=pre_norm,
        rms_norm=kinds == {nn.RMSNorm},
        activation=Activation[ACTIVATIONS[type(feed_forward)]],
        ffn_glu=isinstance(feed_forward, GatedFeedForward),
    )
    vocabulary = vocabularies.target.vocabulary
    spec.register_source_vocabulary(vocabularies.source.vocabulary)
    spec.register_target_vocabulary(vocabulary)
    config = spec.config
    config.unk_token, config.bos_token, config.eos_token = (vocabulary[token] for token in (UNK, BOS, EOS))
    config.decoder_start_token, config.add_source_eos = config.bos_token, True
    config.layer_norm_epsilon = encoder[0].self_attention_norm.norm.eps

    # from_config has the embeddings multiplied by sqrt(d_model), as the paper.
    spec.encoder.embeddings[0].weight = _plain((model.source_embedding or model.embedding).weight)
    spec.decoder.embeddings.weight = _plain(model.embedding.weight)
    spec.decoder.projection.weight = _plain(model.embedding.weight)
    spec.decoder.projection.bias = torch.zeros(len(vocabulary))
    spec.decoder.projection.bias[[PAD, UNK, BOS]] = FORBIDDEN
    source: Any = model.source_position
    target: Any = model.target_position
    spec.encoder.position_encodings.encodings = _plain(source.table)
    spec.decoder.position_encodings.encodings = _plain(target.table)
    for found, layer in zip(spec.encoder.layer, encoder, strict=True):
        _self_attention(found.self_attention, layer.self_attention, layer.self_attention_norm)
        _feed_forward(found.ffn, layer.feed_forward, layer.feed_forward_norm)
    for found, layer in zip(spec.decoder.layer, decoder, strict=True):
        _self_attention(found.self_attention, layer.self_attention, layer.self_attention_norm)
        _cross_attention(found.attention, layer.cross_attention, layer.cross_attention_norm)
        _feed_forward(found.ffn, layer.feed_forward, layer.feed_forward_norm)
    if pre_norm:
        for found, end in zip((spec.encoder, spec.decoder), ends, strict=True):
            _norm(found.layer_norm, end)
    return spec


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().float()


def _linear(spec: "LayerSpec", weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _plain(weight)
    if bias is not None:
        spec.bias = _plain(bias)


def _norm(spec: "LayerSpec", norm: Any) -> None:
    spec.gamma = _plain(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _plain(norm.bias)


def _feed_forward(spec: "LayerSpec", feed_forward: FeedForward, norm: PostNorm | PreNorm) -> None:
    maps = {"linear_0": feed_forward.inner, "linear_1": feed_forward.outer}
    if isinstance(feed_forward, GatedFeedForward):
        maps |= {"linear_0": feed_forward.gate, "linear_0_noact": feed_forward.inner}
    for name, linear in maps.items():
        _linear(getattr(spec, name), linear.weight, linear.bias)
    _norm(spec.layer_norm, norm.norm)


def _self_attention(spec: "LayerSpec", attention: MultiHeadAttention, norm: PostNorm | PreNorm) -> None:
    """Two linear maps: to queries, keys and values; and from all heads."""
    weights, biases = _projections(attention)
    _linear(spec.linear[0], torch.cat(weights), torch.cat(biases))
    _attention_output(spec, attention, norm)


def _cross_attention(spec: "LayerSpec", attention: MultiHeadAttention, norm: PostNorm | PreNorm) -> None:
    """Three linear maps: to queries; to keys and values; and from all heads."""
    weights, biases = _projections(attention)
    _linear(spec.linear[0], weights[0], biases[0])
    _linear(spec.linear[1], torch.cat(weights[1:]), torch.cat(biases[1:]))
    _attention_output(spec, attention, norm)


def _projections(attention: MultiHeadAttention) -> tuple[list[Tensor], list[Tensor]]:
    """Weights `(heads * width, d_model)` and biases `(heads * width,)` of queries, keys and values."""
    weights = attention.query.weight, *_keys_and_values(attention.memory.weight, attention)
    biases = attention.query.bias, *_keys_and_values(attention.memory.bias, attention)
    return [_widened(part, attention) for part in weights], [_widened(part, attention) for part in biases]


def _keys_and_values(rows: Tensor, attention: MultiHeadAttention) -> list[Tensor]:
    """Rows of keys and of values, each of which heads that share them get a copy of."""
    heads = rows.unflatten(0, (attention.kv_heads, -1))  # (kv_heads, d_k + d_v, ...)
    heads = heads.repeat_interleave(attention.heads // attention.kv_heads, dim=0)
    return [part.flatten(0, 1) for part in heads.split([attention.d_k, attention.d_v], dim=1)]


def _widened(rows: Tensor, attention: MultiHeadAttention) -> Tensor:
    """Fill up each head's rows of `rows` `(heads * d_k or d_v, ...)` with zeros to the wider of d_k and d_v."""
    heads = rows.unflatten(0, (attention.heads, -1)).movedim(1, -1)  # (heads, ..., d_k or d_v)
    width = max(attention.d_k, attention.d_v)
    return functional.pad(heads, (0, width - heads.size(-1))).movedim(-1, 1).flatten(0, 1)


def _attention_output(spec: "LayerSpec", attention: MultiHeadAttention, norm: PostNorm | PreNorm) -> None:
    _linear(spec.linear[-1], _widened(attention.output.weight.T, attention).T, attention.output.bias)
    spec.queries_scale = attention.d_k**-0.5 if attention.scale is None else attention.scale
    _norm(spec.layer_norm, norm.norm)
