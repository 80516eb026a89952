"""Memory by turns: an engine that sleeps holds no cache, and nobody can tell from what it says that it slept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toys  # noqa: E402

from rollenv.inference.base import EngineDead, SamplingParams  # noqa: E402
from rollenv.inference.optional import Sleeping  # noqa: E402
from rollenv.inference.parking import Parked  # noqa: E402
from rollenv.inference.proxy import LLMProxy  # noqa: E402
from rollenv.inference.torch_engine import TorchEngine  # noqa: E402

PROMPT = [5, 9, 70, 33, 8, 120]


def engine() -> TorchEngine:
    return TorchEngine(toys.policy(seed=2).model, kv_budget_bytes=1 << 24, workers=1)


def sampling(n: int = 24) -> SamplingParams:
    return SamplingParams(max_tokens=n, seed=7)


async def undisturbed() -> Any:
    served = engine()
    try:
        return await served.generate(PROMPT, sampling(), session="a")
    finally:
        await served.close()


def test_a_sleeping_engine_holds_no_cache_and_goes_on_in_mid_completion() -> None:
    async def main() -> None:
        expected, served = await undisturbed(), engine()
        assert isinstance(served, Sleeping)
        await served.generate(PROMPT, sampling(2), session="idle")
        call = asyncio.ensure_future(served.generate(PROMPT, sampling(), session="a"))
        while served.stats().decoded_tokens < 6:
            await asyncio.sleep(0)
        assert served.stats().kv_bytes > 0
        await served.sleep()
        asleep = served.stats()
        assert (asleep.kv_bytes, asleep.running, asleep.sessions) == (0, 0, 0)
        late = asyncio.ensure_future(served.generate(PROMPT, sampling(), session="b"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert served.stats().steps == asleep.steps, "it sleeps"
        await served.wake()
        assert await call == expected
        assert await late == expected
        again = await served.generate([*PROMPT, 4, 7], sampling(), session="idle")
        assert len(again.ids) == 24
        await served.close()

    asyncio.run(main())


def test_weights_that_come_while_it_sleeps_are_those_it_wakes_with() -> None:
    async def main() -> None:
        served, other = engine(), toys.policy(seed=4)
        await served.sleep()
        await served.update_weights(3, other.state())
        assert served.version == 3
        await served.wake()
        fresh = TorchEngine(other.model, kv_budget_bytes=1 << 24, workers=1, version=3)
        ours, theirs = [await e.generate(PROMPT, sampling(), session="a") for e in (served, fresh)]
        assert ours == theirs
        await served.close()
        await fresh.close()

    asyncio.run(main())


def test_sleeping_and_waking_twice_is_once_and_closing_ends_it() -> None:
    async def main() -> None:
        expected, served = await undisturbed(), engine()
        await asyncio.gather(served.sleep(), served.sleep())
        await served.sleep()
        await served.wake()
        await served.wake()
        assert await served.generate(PROMPT, sampling(), session="a") == expected
        await served.sleep()
        call = asyncio.ensure_future(served.generate(PROMPT, sampling(), session="b"))
        await asyncio.sleep(0)
        await served.close()
        assert (await call).finish_reason == "aborted"
        with pytest.raises(EngineDead):
            await served.sleep()

    asyncio.run(main())


def test_all_replicas_of_a_proxy_sleep() -> None:
    async def main() -> None:
        engines = [engine(), engine()]
        proxy = LLMProxy(engines)
        calls = [asyncio.ensure_future(proxy.generate(PROMPT, sampling(), session=str(i))) for i in range(2)]
        while any(each.stats().decoded_tokens < 2 for each in engines):
            await asyncio.sleep(0)
        await proxy.sleep()
        assert [each.stats().kv_bytes for each in engines] == [0, 0]
        await proxy.wake()
        expected = await undisturbed()
        assert await asyncio.gather(*calls) == [expected, expected]
        await proxy.close()

    asyncio.run(main())


def test_who_joins_a_proxy_that_sleeps_sleeps_too() -> None:
    async def main() -> None:
        first, late = engine(), engine()
        proxy = LLMProxy([first])
        await proxy.sleep()
        await proxy.join(late)
        asked = asyncio.ensure_future(proxy.generate([1, 2, 3], sampling(), session="s"))
        await asyncio.sleep(0.05)
        assert not asked.done()
        assert [one.stats().kv_bytes for one in (first, late)] == [0, 0]
        await proxy.wake()
        assert len((await asked).ids) == 24
        both = [asyncio.ensure_future(proxy.generate([1, 2, i], sampling(), session=str(i))) for i in range(4)]
        assert [len((await one).ids) for one in both] == [24] * 4
        await proxy.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_what_is_parked_on_the_disk_is_free_and_comes_back_to_the_bit() -> None:
    whole = torch.randn(1000)
    view, other = whole[10:20], torch.randn(7).to(torch.bfloat16)
    before = [whole.clone(), other.clone()]
    parked = Parked([whole, view, other], "disk")
    assert parked.nbytes == 4014
    assert whole.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    parked.bring_back()
    assert torch.equal(whole, before[0])
    assert torch.equal(view, before[0][10:20])
    assert torch.equal(other, before[1])


def test_parking_on_the_host_leaves_what_is_there() -> None:
    tensor = torch.randn(9)
    parked = Parked([tensor], "host")
    assert parked.nbytes == 0
    assert tensor.untyped_storage().nbytes() == 36
    parked.bring_back()
