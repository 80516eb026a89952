"""The state machine behind the proxy: who goes where, who waits, and what the end of a replica does."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollenv.inference import InvalidRequest
from rollenv.inference.routing import Request, Router


def router_of(*budgets: int | None, **options: Any) -> Router:
    """Serving replicas "a", "b", ... with these budgets."""
    router = Router(**options)
    for name, budget in zip("abcdefgh", budgets, strict=False):
        router.add(name, budget)
        router.open(name)
    return router


def submit(router: Router, session: str, tokens: int = 1) -> Request:
    return router.submit(session, tokens)[0]


def test_new_sessions_go_where_the_fewest_tokens_are_in_flight_then_the_fewest_sessions_then_to_the_oldest() -> None:
    router = router_of(None, None, None)
    places = [submit(router, f"s{i}", tokens).replica for i, tokens in enumerate([5, 3, 1, 2, 1, 10])]
    assert places == ["a", "b", "c", "c", "b", "c"]  # at the fifth b and c have 3 tokens, c has more sessions
    assert [r.tokens_in_flight for r in router.stats().replicas.values()] == [5, 4, 13]


def test_a_session_stays_where_its_cache_is_however_busy_that_is() -> None:
    router = router_of(10, 10)
    first = submit(router, "s", 4)
    router.complete(first)
    others = [submit(router, "o0", 5), submit(router, "o1", 8)]
    assert [o.replica for o in others] == ["b", "a"]
    again = submit(router, "s", 4)
    assert (again.status, router.home_of("s")) == ("waiting", "a")
    router.complete(others[0])  # b has nothing to do, but not the cache
    assert again.status == "waiting"
    assert again in router.complete(others[1])
    assert (again.status, again.replica) == ("running", "a")


def test_requests_wait_in_order_and_block_only_where_they_could_go_themselves() -> None:
    router = router_of(10, 10)
    home_a = submit(router, "home_a", 8)
    filler_b = submit(router, "filler_b", 8)
    router.complete(home_a)
    filler_a = submit(router, "filler_a", 8)
    bound = submit(router, "home_a", 8)  # waits for a
    assert filler_a.replica == "a"
    router.complete(filler_b)
    free = submit(router, "free", 5)  # passes the older one, which could not have gone to b
    assert free.replica == "b"
    big = submit(router, "big", 9)
    small = submit(router, "small", 1)  # would fit on b, but the older one could go there too
    assert [r.status for r in (bound, big, small)] == ["waiting"] * 3
    assert router.complete(filler_a) == [bound]
    assert router.complete(free) == [big, small]
    assert (big.replica, small.replica) == ("b", "a")


def test_a_request_larger_than_any_budget_has_a_replica_to_itself() -> None:
    router = router_of(10)
    small = submit(router, "small", 1)
    huge = submit(router, "huge", 99)
    after = submit(router, "after", 1)
    assert (huge.status, after.status) == ("waiting", "waiting")
    assert router.complete(small) == [huge]
    assert after.status == "waiting"
    assert router.complete(huge) == [after]


def test_who_gives_up_waiting_lets_those_behind_through() -> None:
    router = router_of(10)
    running = submit(router, "running", 5)
    big, small = submit(router, "big", 10), submit(router, "small", 5)
    assert router.end(big) == [small]
    assert (big.status, small.status, running.status) == ("ended", "running", "running")
    assert router.end(big) == []
    assert router.home_of("big") is None


def test_abort_ends_what_waits_and_marks_what_runs() -> None:
    router = router_of(10)
    running, waiting = submit(router, "r", 8), submit(router, "w", 8)
    assert router.abort("w") == [waiting]
    assert (waiting.status, router.request_of("w")) == ("aborted", None)
    assert router.abort("r") == []
    assert (running.status, running.stopping) == ("running", True)
    with pytest.raises(InvalidRequest, match="already generating"):
        router.submit("r", 1)
    router.end(running)
    assert router.home_of("r") is None
    router.complete(submit(router, "idle", 1))
    assert router.abort("idle") == router.abort("nobody") == []
    assert router.stats().sessions == 0


def test_what_ran_on_a_replica_that_is_gone_begins_again_before_younger_requests() -> None:
    router = router_of(10, 10)
    on_a, on_b = submit(router, "x", 6), submit(router, "y", 6)
    waiting = submit(router, "w", 6)
    aborted = submit(router, "z", 4)
    assert (on_a.replica, on_b.replica, waiting.status, aborted.status) == ("a", "b", "waiting", "waiting")
    router.end(aborted)
    assert router.remove("a") == []
    assert (on_a.status, router.stats().queued) == ("waiting", 2)
    assert router.complete(on_b) == [on_a]
    assert (on_a.replica, on_a.restarts, router.home_of("x")) == ("b", 1, "b")
    assert router.stats().restarts == router.stats().moved_sessions == 1


def test_an_aborted_request_is_not_begun_again() -> None:
    router = router_of(None, None)
    request = submit(router, "s", 1)
    router.abort("s")
    assert router.remove("a") == [request]
    assert request.status == "aborted"
    assert router.stats().sessions == 0


def test_a_failing_replica_hands_the_request_to_another_and_is_given_up_after_a_row_of_failures() -> None:
    router = router_of(None, None, max_failures=2, max_restarts=9)
    first, second = submit(router, "s0"), submit(router, "s1")
    third = submit(router, "s2")
    assert [r.replica for r in (first, second, third)] == ["a", "b", "a"]
    assert not router.fail(first)
    assert router.restart(first) == [first]
    assert first.replica == "b"
    assert not router.fail(third)  # of the same wave: they ran side by side
    router.restart(third)
    fourth = submit(router, "s3")
    assert fourth.replica == "a"
    router.complete(fourth)
    fifth = submit(router, "s3")
    assert not router.fail(fifth)  # something was completed in between
    router.restart(fifth)
    assert router.fail(submit(router, "s4"))
    assert router.stats().replicas["a"].failures == 4


def test_a_request_that_breaks_whatever_serves_it_is_refused_before_it_has_broken_everything() -> None:
    router = router_of(None, None, None, None, max_restarts=1)
    request = submit(router, "s")
    router.remove("a")
    assert request.status == "running"
    assert router.remove(request.replica) == [request]
    assert (request.status, request.refusal) == ("refused", "it has failed on 2 replicas")
    alone = router_of(None)
    request = submit(alone, "s")
    alone.fail(request)
    assert alone.restart(request) == [request]
    assert (request.status, request.refusal) == ("refused", "no other replica serves")


def test_when_no_replica_is_left_everything_is_refused_unless_one_is_joining() -> None:
    router = router_of(5)
    running, waiting = submit(router, "r", 5), submit(router, "w", 5)
    router.add("b", 5)
    assert router.remove("a") == []
    assert router.open("b") == [running]
    assert router.remove("b") == [running, waiting]
    assert {running.refusal, waiting.refusal} == {"no replica is left"}
    late = submit(router, "late")
    assert (late.status, late.refusal) == ("refused", "no replica is left")
    assert router.stats().sessions == 0


def test_a_draining_replica_finishes_what_runs_and_hands_over_what_does_not() -> None:
    router = router_of(10, 10)
    idle = submit(router, "idle", 1)
    router.complete(idle)
    busy = submit(router, "busy", 8)
    stays = submit(router, "stays", 9)
    assert (busy.replica, stays.replica) == ("b", "a")
    bound = submit(router, "idle", 2)
    assert (bound.status, router.home_of("idle")) == ("waiting", "a")
    assert router.drain("a") == [bound]
    assert (bound.replica, stays.replica, router.home_of("idle")) == ("b", "a", "b")
    assert submit(router, "new", 3).status == "waiting"
    assert router.is_busy("a")
    router.complete(stays)
    assert not router.is_busy("a")
    assert router.home_of("stays") is None
    assert router.remove("a") == []
    with pytest.raises(ValueError, match="last one that serves"):
        router.drain("b")
    with pytest.raises(ValueError, match="there is no replica 'bb'; did you mean 'b'"):
        router.drain("bb")


def test_arguments_that_make_no_sense_are_refused() -> None:
    router = router_of(1)
    with pytest.raises(ValueError, match="already"):
        router.add("a", 1)
    with pytest.raises(ValueError, match="at least 1"):
        router.add("z", 0)
    router.add("j", 1)
    with pytest.raises(ValueError, match="still joining"):
        router.drain("j")
    for options in ({"max_restarts": -1}, {"max_failures": 0}):
        with pytest.raises(ValueError, match="max_restarts"):
            Router(**options)


def test_what_an_event_costs_does_not_grow_with_the_sessions_in_flight() -> None:
    """Counts executed lines of the module, not time: of a submission, a completion, an abort and a cancellation."""

    def lines_per_round(n_sessions: int) -> int:
        router = router_of(n_sessions // 2, n_sessions // 2, n_sessions // 2)
        crowd = [submit(router, f"s{i}", 1 + i % 5) for i in range(n_sessions)]
        waiting = [r for r in crowd if r.status == "waiting"]
        assert n_sessions / 10 < len(waiting) < n_sessions - 1
        lines = 0

        def trace(frame: Any, event: str, arg: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return trace if frame.f_code.co_filename.endswith("routing.py") else None

        sys.settrace(trace)
        try:
            router.complete(crowd[0])
            router.end(submit(router, "new", 3))
            router.abort(f"s{waiting[-1].number - 1}")
            router.end(waiting[-2])
            router.complete(crowd[1])
        finally:
            sys.settrace(None)
        return lines

    assert lines_per_round(10_000) <= lines_per_round(100) + 50


class RouterUnderRandomEvents(RuleBasedStateMachine):
    """Whatever happens in whatever order, the module's invariant holds; a model of homes checks the affinity."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(max_restarts=1, max_failures=2)
        self.requests: list[Request] = []
        self.homes: dict[str, str] = {}
        self.n_replicas = 0

    # -- what happens ------------------------------------------------------------------------------------------------

    @initialize(budgets=st.lists(st.integers(8, 16), min_size=2, max_size=3))
    def begin(self, budgets: list[int]) -> None:
        for budget in budgets:
            self.add(budget, serves=True)

    @rule(budget=st.one_of(st.none(), st.integers(1, 30)), serves=st.booleans())
    def add(self, budget: int | None, serves: bool) -> None:
        name = f"r{self.n_replicas}"
        self.n_replicas += 1
        self.router.add(name, budget)
        if serves:
            self.note(self.router.open(name))

    @precondition(lambda self: self.names("joining"))
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.note(self.router.open(data.draw(st.sampled_from(self.names("joining")))))

    @rule(burst=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 20)), min_size=1, max_size=6))
    def submit_some(self, burst: list[tuple[int, int]]) -> None:
        for session, tokens in burst:
            self.submit(session, tokens)

    def submit(self, session: int, tokens: int) -> None:
        name = f"s{session}"
        if self.router.request_of(name) is not None:
            with pytest.raises(InvalidRequest):
                self.router.submit(name, tokens)
            return
        request, started = self.router.submit(name, tokens)
        self.requests.append(request)
        self.note(started)

    @precondition(lambda self: self.of("running"))
    @rule(data=st.data(), how=st.sampled_from(["complete", "complete", "end", "fail"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        request = data.draw(st.sampled_from(self.of("running")))
        if how == "complete":
            self.note(self.router.complete(request))
        elif how == "end":
            self.note(self.router.end(request))
        elif self.router.fail(request):
            self.remove(request.replica)
        else:
            left = self.homes.pop(request.session.name)
            woken = self.router.restart(request)
            if home := self.router.home_of(request.session.name):
                assert home != left
                self.homes[request.session.name] = home
            self.note(woken)

    @precondition(lambda self: self.of("waiting"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.note(self.router.end(data.draw(st.sampled_from(self.of("waiting")))))

    @rule(session=st.integers(0, 12))
    def abort(self, session: int) -> None:
        request = self.router.request_of(f"s{session}")
        self.note(self.router.abort(f"s{session}"))
        if request is None or request.status == "aborted":
            self.homes.pop(f"s{session}", None)

    @precondition(lambda self: self.names("serving"))
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names("serving")))
        if len(self.names("serving", "joining")) == 1:
            with pytest.raises(ValueError, match="last one"):
                self.router.drain(name)
            return
        before = [s for s, home in self.homes.items() if home == name]
        woken = self.router.drain(name)
        for session in before:
            request = self.router.request_of(session)
            if request is None or request.replica != name:
                del self.homes[session]
        self.note(woken)

    @precondition(lambda self: self.names("joining", "serving", "draining"))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(self.names("joining", "serving", "draining"))))

    # -- what must hold ----------------------------------------------------------------------------------------------

    def names(self, *phases: str) -> list[str]:
        return [name for name, replica in self.router.stats().replicas.items() if replica.phase in phases]

    def of(self, status: str) -> list[Request]:
        return [request for request in self.requests if request.status == status]

    def remove(self, name: str) -> None:
        self.homes = {session: home for session, home in self.homes.items() if home != name}
        self.note(self.router.remove(name))

    def note(self, woken: list[Request]) -> None:
        """A request that started did so at home, and has passed no older one that may go there, too."""
        homes = {r.number: self.router.home_of(r.session.name) for r in self.of("waiting")}
        for request in woken:
            assert request.status != "waiting"
            if request.status == "running":
                assert self.homes.setdefault(request.session.name, request.replica) == request.replica
                assert not [n for n, home in homes.items() if n < request.number and home in (None, request.replica)]
        draining = self.names("draining")
        live = {request.session.name for request in self.of("running")}
        for session, home in list(self.homes.items()):
            if self.router.home_of(session) is None:  # aborted while it ran, or ended on a draining replica
                assert session not in live
                del self.homes[session]
            else:
                assert self.router.home_of(session) == home
                assert home not in draining or session in live

    @invariant()
    def tokens_in_flight_add_up_and_stay_within_the_budget(self) -> None:
        for name, replica in self.router.stats().replicas.items():
            running = [request for request in self.of("running") if request.replica == name]
            assert replica.running == len(running)
            assert replica.tokens_in_flight == sum(request.tokens for request in running)
            if replica.token_budget is not None and replica.tokens_in_flight > replica.token_budget:
                assert len(running) == 1

    @invariant()
    def every_request_waits_or_runs_or_is_over(self) -> None:
        stats = self.router.stats()
        assert stats.queued == len(self.of("waiting"))
        assert sum(replica.running for replica in stats.replicas.values()) == len(self.of("running"))
        for request in self.requests:
            assert bool(request.replica) == (request.status == "running")
            assert bool(request.refusal) == (request.status == "refused")
            open_ = request.status in ("waiting", "running")
            assert (self.router.request_of(request.session.name) is request) == open_
        if not self.names("serving", "joining"):
            assert not self.of("waiting")

    @invariant()
    def the_oldest_that_may_go_to_a_replica_waits_only_for_room(self) -> None:
        stats = self.router.stats()
        for name in self.names("serving"):
            homes = {r.number: self.router.home_of(r.session.name) for r in self.of("waiting")}
            eligible = [r for r in self.of("waiting") if homes[r.number] in (None, name)]
            if eligible:
                oldest, replica = min(eligible, key=lambda r: r.number), stats.replicas[name]
                assert replica.token_budget is not None
                assert replica.running
                assert replica.tokens_in_flight + oldest.tokens > replica.token_budget

    @invariant()
    def nothing_is_remembered_without_a_reason(self) -> None:
        stats = self.router.stats()
        known = {request.session.name for request in [*self.of("waiting"), *self.of("running")]}
        homes = {s for name in stats.replicas for s in self.router.sessions_of(name)}
        assert stats.sessions == len(known | homes)
        assert homes == set(self.homes)

    def teardown(self) -> None:
        """With a replica that serves, everything gets its turn."""
        self.router.add("last", None)
        self.note(self.router.open("last"))
        for _ in range(len(self.requests) + 1):
            for request in self.of("running"):
                self.note(self.router.complete(request))
        assert not self.of("waiting")
        assert not self.of("running")


TestRouterUnderRandomEvents = RouterUnderRandomEvents.TestCase
TestRouterUnderRandomEvents.settings = settings(max_examples=100, stateful_step_count=40)
