"""A completion ends with the first token that makes its ending complete, whatever the tokens' boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from rollenv.inference.base import SamplingParams
from rollenv.inference.endings import ending
from rollenv.inference.sessions import Request, Session

PIECES = ["", "a", "b", "ab", "ba", "<", "</", "end", ">"]


class Pieces:
    """Token i is the text `PIECES[i]`."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(PIECES[i] for i in ids)


def request_of(sampling: SamplingParams, limit: int) -> Request:
    return Request(Session("a"), [1], sampling, limit, cast(Any, None))


@given(
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=40),
    st.lists(st.sampled_from(["ab", "</end>", "aba", ">"]), max_size=2),
    st.lists(st.integers(0, len(PIECES) - 1), max_size=2),
    st.integers(1, 40),
)
def test_it_ends_with_the_first_token_that_is_a_stop_or_completes_one_or_is_the_last(
    ids: list[int], texts: list[str], stops: list[int], limit: int
) -> None:
    request = request_of(SamplingParams(max_tokens=limit, stop=tuple(texts), stop_token_ids=tuple(stops)), limit)
    for made, token in enumerate(ids, start=1):
        request.ids.append(token)
        reason = ending(request, Pieces())
        text = "".join(PIECES[i] for i in ids[:made])
        stopped = token in stops or any(stop in text for stop in texts)
        assert reason == ("stop" if stopped else "length" if made >= limit else None)
        if reason is not None:
            return


def test_a_stop_string_is_found_at_the_end_of_a_long_completion() -> None:
    request = request_of(SamplingParams(max_tokens=1000, stop=("</end>",)), 1000)
    request.ids = [1] * 500 + [6, 7]
    assert ending(request, Pieces()) is None
    request.ids.append(8)
    assert ending(request, Pieces()) == "stop"
