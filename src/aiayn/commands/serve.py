"""task=serve: translate over HTTP, with a page for people."""

import logging
from functools import partial

from omegaconf import DictConfig

from aiayn.analysis.page import attention
from aiayn.commands.inputs import checkpoint_files, evaluated_inference
from aiayn.cost.counting import parameters
from aiayn.data.tokenizer import Vocabularies
from aiayn.inference.ctranslate2_decoder import Exported
from aiayn.inference.translation import Translation, open_with, translator
from aiayn.model.model import Model
from aiayn.serving import server
from aiayn.serving.messages import Attention
from aiayn.serving.service import Attend, Limits, Service

log = logging.getLogger(__name__)


def serve(cfg: DictConfig) -> None:
    """Answer requests at `host` and `port` until SIGINT (Ctrl-C) or SIGTERM, and print the address when it is ready.

    Raises:
        ValueError: if a limit or the address has no meaning, or the checkpoint cannot be read.
        OSError: if the address cannot be had.
    """
    try:
        limits = Limits(**cfg.limits)
    except TypeError as error:  # not such keys, or none
        raise ValueError(f"limits must have the keys {', '.join(Limits.__annotations__)}; got {cfg.limits}.") from error
    with server.listen(cfg.host, cfg.port) as listening:
        files = checkpoint_files(cfg.checkpoint)
        loaded, model = open_with(cfg.backend, files, accelerator=cfg.trainer.accelerator, trust=cfg.trust)
        about = {
            "model": str(loaded.config.get("name")),
            "checkpoints": len(files),
            "step": loaded.step,
            "parameters": None if isinstance(model, Exported) else parameters(model),
            "device": "cpu, CTranslate2" if isinstance(model, Exported) else str(next(model.parameters()).device),
            "vocabulary": loaded.vocabularies.hash,
            "source_language": loaded.config["data"]["source_language"],
            "target_language": loaded.config["data"]["target_language"],
        }
        inference = evaluated_inference(cfg, loaded.config)
        searcher = translator(model, loaded.vocabularies, **inference)
        searcher.translate(["."])  # what is wrong with `inference` or the model shows now, and not to the first client
        shows = attention_of(model, loaded.vocabularies)
        local = server.is_local(listening)
        service = Service(searcher, beam=inference["beam"], limits=limits, about=about, attend=shows, local=local)
        log.info("%s, step %d, on %s", about["model"], about["step"], about["device"])
        host, port = listening.getsockname()[:2]
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        server.run(service, listening)
    log.info("sentences translated: %d", service.batcher.served)


def attend(model: Model, vocabularies: Vocabularies, sentence: str, translation: Translation) -> Attention | None:
    """What every head attends to while the model reads a sentence and its translation.

    None if the translation was put together from pieces: the model never read the sentence as a whole, and cannot.

    Raises:
        ValueError: if the model's attention is of a kind that shows no weights.
    """
    if translation.pieces > 1:
        return None
    [source] = vocabularies.source.encode([sentence])
    return Attention(**attention(model, vocabularies, source.tolist(), translation.tokens))


def attention_of(model: Model | Exported, vocabularies: Vocabularies) -> Attend | None:
    """What shows the model's attention; None, with a word about it, if it is of a kind that shows none."""
    if not isinstance(model, Model):
        log.info("an ensemble or an exported model is served without attention")
        return None
    try:
        attend(model, vocabularies, "", Translation("", [], 0.0, 0.0))
    except ValueError as error:
        log.warning("served without attention: %s", error)
        return None
    return partial(attend, model, vocabularies)
