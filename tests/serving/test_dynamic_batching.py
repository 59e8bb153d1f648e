"""What waits goes into one call of the model, each request gets its own answers, and errors stay where they belong."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from aiayn.inference.translation import Translation
from aiayn.serving.batching import Batcher, FullError, ModelError, StoppedError


class Held:
    """A translator that works only when it is let, and notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.threads: set[int] = set()
        self.entered = threading.Semaphore(0)
        self.may_go_on = threading.Semaphore(0)

    def __call__(self, sentences: Sequence[str], n: int) -> list[list[Translation]]:
        self.calls.append((list(sentences), n))
        self.threads.add(threading.get_ident())
        self.entered.release()
        assert self.may_go_on.acquire(timeout=10)
        if "poison" in sentences:
            raise RuntimeError("the poison worked")
        if "end" in sentences:
            raise StopIteration
        sentences = [sentence for sentence in sentences if sentence != "lost"]
        return [[Translation(f"{sentence} {rank}", [], -rank, -rank) for rank in range(n)] for sentence in sentences]


def scenario(
    play: Callable[[Batcher, Held], Coroutine[Any, Any, None]], *, max_waiting: int = 97, max_batch: int = 11
) -> Held:
    """Play a scene with a batcher whose model holds its first call, the request `first`, when the scene begins."""
    held = Held()

    async def run() -> None:
        batcher = Batcher(held, max_waiting=max_waiting, max_batch=max_batch)
        first = asyncio.create_task(batcher.translate(["first"], 1))
        await working(held)
        await play(batcher, held)
        assert texts(await first) == [["first 0"]]

    asyncio.run(asyncio.wait_for(run(), 20))
    return held


async def working(held: Held) -> None:
    """Until the model has begun its next call."""
    assert await asyncio.to_thread(held.entered.acquire, timeout=10)


async def asked(batcher: Batcher, *requests: tuple[Sequence[str], int]) -> list[asyncio.Task[Any]]:
    """Requests that wait."""
    tasks = [asyncio.create_task(batcher.translate(sentences, n)) for sentences, n in requests]
    await asyncio.sleep(0)
    return tasks


def texts(answer: list[list[Translation]]) -> list[list[str]]:
    return [[found.text for found in translations] for translations in answer]


def test_all_that_waits_is_translated_in_one_call_in_order() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        tasks = await asked(batcher, (["a", "b"], 1), (["c"], 3), (["d", "e"], 2))
        assert batcher.waiting == 5
        held.may_go_on.release(2)
        answers = [texts(await task) for task in tasks]
        assert answers == [[["a 0"], ["b 0"]], [["c 0", "c 1", "c 2"]], [["d 0", "d 1"], ["e 0", "e 1"]]]
        assert (batcher.waiting, batcher.served) == (0, 6)

    held = scenario(play)
    assert held.calls == [(["first"], 1), (["a", "b", "c", "d", "e"], 3)]
    assert len(held.threads) == 1
    assert threading.get_ident() not in held.threads


def test_a_call_holds_no_more_than_its_budget_and_no_request_is_split_or_overtaken() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        tasks = await asked(batcher, (["a", "b"], 1), (["c", "d"], 1), (["e"], 1), (["f"] * 5, 1), (["g"], 1))
        held.may_go_on.release(6)
        await asyncio.gather(*tasks)

    held = scenario(play, max_batch=3)
    assert [sentences for sentences, _ in held.calls[1:]] == [["a", "b"], ["c", "d", "e"], ["f"] * 5, ["g"]]


def test_an_error_of_the_model_reaches_the_requests_of_its_call_and_no_other() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        tasks = await asked(batcher, (["a"], 1), (["poison"], 1), (["b"], 1))
        held.may_go_on.release(3)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(error) for error in found[:2]] == ["RuntimeError: the poison worked"] * 2
        assert all(isinstance(error, ModelError) for error in found[:2])
        assert texts(found[2]) == [["b 0"]]
        assert batcher.served == 2

    scenario(play, max_batch=2)


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("lost", "ValueError: it gave translations of 2 sentences, and was asked for 3"),
        ("end", "StopIteration: "),  # of a decoder's results that ended early
    ],
)
def test_too_few_translations_fail_the_requests_of_the_call_and_the_next_are_translated(
    sentence: str, words: str
) -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        tasks = await asked(batcher, (["a"], 1), ([sentence, "b"], 1), (["c"], 1))
        held.may_go_on.release(3)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [repr(error) for error in found[:2]] == [repr(ModelError(words))] * 2
        assert texts(found[2]) == [["c 0"]]
        assert (batcher.waiting, batcher.served) == (0, 2)

    scenario(play, max_batch=3)


def test_a_cancelled_request_is_not_translated_and_waits_no_longer() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        gone, stays = await asked(batcher, (["gone"] * 7, 1), (["stays"], 1))
        gone.cancel()
        await asyncio.wait([gone])
        assert batcher.waiting == 1
        held.may_go_on.release(2)
        assert texts(await stays) == [["stays 0"]]

    assert [sentences for sentences, _ in scenario(play).calls] == [["first"], ["stays"]]


def test_a_request_that_is_cancelled_while_the_model_works_on_it_harms_no_other() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        gone, stays = await asked(batcher, (["gone"], 1), (["stays"], 1))
        held.may_go_on.release()
        await working(held)
        gone.cancel()
        held.may_go_on.release()
        assert texts(await stays) == [["stays 0"]]

    scenario(play)


def test_more_than_may_wait_is_refused_and_there_is_room_again_later() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        (waits,) = await asked(batcher, (["a"] * 5, 1))
        with pytest.raises(FullError):
            await batcher.translate(["b"] * 3, 1)
        (fits,) = await asked(batcher, (["c"] * 2, 1))
        held.may_go_on.release(2)
        await asyncio.gather(waits, fits)
        (again,) = await asked(batcher, (["d"] * 7, 1))
        held.may_go_on.release()
        await again

    held = scenario(play, max_waiting=7)
    assert [len(sentences) for sentences, _ in held.calls] == [1, 7, 7]


def test_stopping_finishes_what_runs_and_refuses_the_rest() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        (waits,) = await asked(batcher, (["waits"], 1))
        batcher.stop()
        with pytest.raises(StoppedError):
            await waits
        with pytest.raises(StoppedError):
            await batcher.translate(["late"], 1)
        held.may_go_on.release()

    assert scenario(play).calls == [(["first"], 1)]


def test_other_work_has_its_turn_in_the_models_thread() -> None:
    async def play(batcher: Batcher, held: Held) -> None:
        other = asyncio.create_task(batcher.run(threading.get_ident))
        await asyncio.wait([other], timeout=0.1)
        assert not other.done()
        held.may_go_on.release()
        assert {await other} == held.threads
        with pytest.raises(ModelError, match="ZeroDivisionError: "):
            await batcher.run(lambda: 1 / 0)

    scenario(play)
