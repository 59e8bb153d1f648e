"""Dynamic batching: what comes in while the model works waits, and is translated together in the model's next call.

A request that finds the model idle starts at once, so nothing is gained by waiting for others: batches grow with the
load by themselves. The model works in one thread of its own; all else here belongs to the thread of the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from aiayn.inference.translation import Translation

log = logging.getLogger(__name__)
Translate = Callable[[Sequence[str], int], list[list[Translation]]]
Result = TypeVar("Result")


class FullError(Exception):
    """As many sentences wait as may."""


class StoppedError(Exception):
    """The service ends."""


class ModelError(Exception):
    """The model raised an error."""


@dataclass(frozen=True, eq=False)
class _Request:
    sentences: Sequence[str]
    n_best: int
    answer: asyncio.Future[list[list[Translation]]]


class Batcher:
    """Translate the sentences of many requests with few calls of the model.

    Args:
        translate: `Translator.n_best`; called in one thread, one call at a time.
        max_waiting: Sentences that may wait, those that the model works on not counted.
        max_batch: Sentences of one call; a request is never split, so one with more goes alone.

    Attributes:
        served: Sentences translated so far.
        stopped: Whether `stop` was called.
    """

    def __init__(self, translate: Translate, *, max_waiting: int, max_batch: int) -> None:
        self.max_waiting = max_waiting
        self.max_batch = max_batch
        self.served = 0
        self.stopped = False
        self._translate = translate
        self._queue: deque[_Request] = deque()
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    @property
    def waiting(self) -> int:
        """Sentences that wait."""
        return sum(len(request.sentences) for request in self._queue)

    async def translate(self, sentences: Sequence[str], n_best: int) -> list[list[Translation]]:
        """The `n_best` best translations of each sentence, as `Translator.n_best`; cancelled, it waits no longer.

        Raises:
            FullError: if more than `max_waiting` sentences would wait.
            StoppedError: if the service ends before the model came to these sentences.
            ModelError: if the model raised an error, or left a sentence out; those of the same call share it.
        """
        if self.stopped:
            raise StoppedError
        if self.waiting + len(sentences) > self.max_waiting:
            raise FullError
        request = _Request(sentences, n_best, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        try:
            return await request.answer
        except asyncio.CancelledError:
            if request in self._queue:
                self._queue.remove(request)
            raise

    async def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call a function in the model's thread, between two batches.

        Raises:
            ModelError: if the function raised an error.
        """

        def call() -> Result:
            try:
                return function(*arguments)
            except Exception as error:  # caught here, as a future would never hand on a StopIteration
                log.exception("the model failed")
                raise ModelError(f"{type(error).__name__}: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def stop(self) -> None:
        """Refuse what waits and what comes; what the model works on is finished."""
        self.stopped = True
        while self._queue:
            answer = self._queue.popleft().answer
            if not answer.done():
                answer.set_exception(StoppedError())

    async def _work(self) -> None:
        """Translate until nothing waits."""
        while batch := self._take():
            try:
                answers = await self.run(self._answers, batch)
            except ModelError as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(ModelError(*error.args))
                continue
            for request, answer in zip(batch, answers, strict=True):
                self.served += len(answer)
                if not request.answer.done():
                    request.answer.set_result(answer)
        self._working = None

    def _answers(self, batch: list[_Request]) -> list[list[list[Translation]]]:
        """What each request gets; in the model's thread, so that whatever is wrong fails these requests alone."""
        sentences = [sentence for request in batch for sentence in request.sentences]
        # How many are wanted changes when the search stops and not which are the best, so all get the most.
        found = self._translate(sentences, max(request.n_best for request in batch))
        if len(found) != len(sentences):
            raise ValueError(f"it gave translations of {len(found)} sentences, and was asked for {len(sentences)}")
        rest = iter(found)
        return [[next(rest)[: request.n_best] for _ in request.sentences] for request in batch]

    def _take(self) -> list[_Request]:
        """The next batch, in the order in which the requests came."""
        batch: list[_Request] = []
        room = self.max_batch
        while self._queue and (not batch or len(self._queue[0].sentences) <= room):
            batch.append(self._queue.popleft())
            room -= len(batch[-1].sentences)
        return batch
