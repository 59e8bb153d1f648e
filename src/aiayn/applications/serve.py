"""task=serve: translate over HTTP, with a page for people."""

import logging
import signal
import socket
from functools import partial

import uvicorn
from omegaconf import DictConfig

from aiayn.analysis.page import attention
from aiayn.data.tokenizer import Tokenizer
from aiayn.inference.ctranslate2_decoder import Exported
from aiayn.inference.ensemble import Ensemble
from aiayn.inference.translation import Translation, open_with, translator
from aiayn.model.transformer import Transformer
from aiayn.serving.messages import Attention
from aiayn.serving.service import Attend, Limits, Service
from aiayn.tasks.inputs import checkpoint_files, evaluated_inference

log = logging.getLogger(__name__)
# Seconds that an idle connection stays open. Clients give theirs up earlier (httpx after 5), so that none asks on a
# connection that the service closes in that moment.
KEEP_ALIVE = 65


class Server(uvicorn.Server):
    """Uvicorn's server; it waits for running requests when it ends, so those that wait for the model must be told."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            service.app(),
            log_config=None,  # its messages go where ours go
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        super().__init__(config)
        self.service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what waits, finish what runs."""
        self.service.batcher.stop()
        await super().shutdown(sockets)


def serve(cfg: DictConfig) -> None:
    """Answer requests at `host` and `port` until SIGINT (Ctrl-C) or SIGTERM, and print the address when it is ready.

    Raises:
        ValueError: if a limit or the address has no meaning, or the checkpoint cannot be read.
        OSError: if the address cannot be had.
    """
    limits = Limits(**cfg.limits)
    with listen(str(cfg.host), cfg.port) as listening:
        files = checkpoint_files(cfg.checkpoint)
        loaded, model = open_with(cfg.backend, files, accelerator=cfg.trainer.accelerator)
        about = {
            "model": str(loaded.config.get("name")),
            "checkpoints": len(files),
            "step": loaded.step,
            "parameters": None if isinstance(model, Exported) else sum(size.numel() for size in model.parameters()),
            "device": "cpu, CTranslate2" if isinstance(model, Exported) else str(next(model.parameters()).device),
            "vocabulary": loaded.tokenizer.hash,
            "source_language": loaded.config["data"]["source_language"],
            "target_language": loaded.config["data"]["target_language"],
        }
        inference = evaluated_inference(cfg, loaded.config)
        searcher = translator(model, loaded.tokenizer, **inference)
        searcher.translate(["."])  # what is wrong with `inference` or the model shows now, and not to the first client
        shows = attention_of(model, loaded.tokenizer)
        service = Service(searcher, beam=inference["beam"], limits=limits, about=about, attend=shows)
        server = Server(service)
        for number in (signal.SIGINT, signal.SIGTERM):
            # Uvicorn raises the signal again when it has ended, for the handler that was there: it is to do nothing.
            signal.signal(number, server.handle_exit)
        log.info("%s, step %d, on %s", about["model"], about["step"], about["device"])
        host, port = listening.getsockname()[:2]
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        server.run(sockets=[listening])
    log.info("%d sentences were translated", service.batcher.served)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; they wait until a server answers.

    Raises:
        ValueError: if `port` is no port.
        OSError: if another process has the port, or the host is not this machine.
    """
    if not isinstance(port, int) or not 0 <= port < 2**16:
        raise ValueError(f"port must be a whole number from 0 (any free one) to {2**16 - 1}, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise OSError(f"cannot listen at {host}, port {port}: {reason}; choose another host= or port=.") from error


def attend(model: Transformer, tokenizer: Tokenizer, sentence: str, translation: Translation) -> Attention:
    """What every head attends to while the model reads a sentence and its translation.

    Raises:
        ValueError: if the model's attention is of a kind that shows no weights.
    """
    return Attention(**attention(model, tokenizer, tokenizer.encode([sentence])[0].tolist(), translation.tokens))


def attention_of(model: Transformer | Ensemble | Exported, tokenizer: Tokenizer) -> Attend | None:
    """What shows the model's attention; None, with a word about it, if it is of a kind that shows none."""
    if not isinstance(model, Transformer):
        log.info("an ensemble or an exported model is served without attention")
        return None
    try:
        attend(model, tokenizer, "", Translation("", [], 0.0, 0.0))
    except ValueError as error:
        log.warning("served without attention: %s", error)
        return None
    return partial(attend, model, tokenizer)
