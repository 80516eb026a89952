"""Sessions, leases and numbered requests, as a state machine: whatever happens, its invariants hold."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from rollenv.server.sessions import ServerFull, Session, SessionError, SessionTable


def test_a_repeated_request_has_its_answer_again_and_others_are_refused() -> None:
    session = Session("s", None, 0.0)
    assert session.replay(1) is None
    session.answered(1, "one")
    assert session.replay(1) == "one"
    assert session.replay(2) is None
    with pytest.raises(SessionError, match="request 3 is out of order: the last one was 1, so send 2"):
        session.replay(3)
    session.answered(2, "two")
    with pytest.raises(SessionError, match="out of order"):
        session.replay(1)
    assert session.replay(None) is None


def test_a_full_server_says_when_to_come_again_and_a_draining_one_to_go_elsewhere() -> None:
    table = SessionTable(1, 10.0)
    first = table.open("a", None, 0.0)
    with pytest.raises(ServerFull, match="all 1 sessions"):
        table.open("b", None, 0.0)
    table.close(first)
    table.open("b", None, 0.0)
    table.draining = True
    with pytest.raises(ServerFull, match="shutting down"):
        table.open("c", None, 0.0)
    assert (table.opened, table.refused) == (2, 2)


class Leases(RuleBasedStateMachine):
    """Against a plain model: name -> (connections, end of lease)."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.table = SessionTable(4, 5.0)
        self.now, self.model, self.count = 0.0, dict[str, list[float]](), 0

    @rule(target=names)
    def open(self) -> str:
        self.count += 1
        name = f"s{self.count}"
        if len(self.model) == 4:
            with pytest.raises(ServerFull):
                self.table.open(name, None, self.now)
        else:
            self.table.open(name, None, self.now)
            self.model[name] = [0, self.now + 5.0]
        return name

    @rule(name=names)
    def touch(self, name: str) -> None:
        if name in self.model:
            self.table.touch(self.table.get(name), self.now)
            self.model[name][1] = max(self.model[name][1], self.now + 5.0)
        else:
            with pytest.raises(SessionError, match="there is no session"):
                self.table.get(name)

    @rule(name=names)
    def connect(self, name: str) -> None:
        if name in self.model:
            self.table.connect(self.table.get(name))
            self.model[name][0] += 1

    @rule(name=names)
    def disconnect(self, name: str) -> None:
        if self.model.get(name, [0])[0]:
            self.table.disconnect(self.table.get(name), self.now)
            self.model[name] = [self.model[name][0] - 1, self.now + 5.0]

    @rule(seconds=st.floats(0.1, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        gone = {session.id for session in self.table.expired(self.now)}
        assert gone == {name for name, (n, end) in self.model.items() if not n and end <= self.now}
        for name in gone:
            assert self.table.close(self.table.get(name))
            del self.model[name]

    @invariant()
    def the_same_sessions_live(self) -> None:
        assert {session.id for session in self.table.all()} == self.model.keys()
        assert len(self.table) <= 4


TestLeases = Leases.TestCase
