"""Numbers are handed out as ALFWorld hands them out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.alfworld.naming import names_of

IDS = st.sets(
    st.builds("{}_bar_{}{}".format, st.sampled_from(["mug", "sink", "drawer"]), st.integers(0, 99), st.just("")),
    max_size=12,
)


def test_the_first_id_gets_the_highest_number() -> None:
    assert names_of(["mug_bar_2", "mug_bar_1", "cup_bar_5"]) == {
        "cup_bar_5": "cup 1",
        "mug_bar_1": "mug 2",
        "mug_bar_2": "mug 1",
    }


def test_basins_have_a_name_of_their_own() -> None:
    names = names_of(["sink_bar_1", "sink_bar_1_bar_sinkbasin"])
    assert names == {"sink_bar_1": "sink 1", "sink_bar_1_bar_sinkbasin": "sinkbasin 1"}


def test_what_has_no_coordinates_has_no_number() -> None:
    assert names_of(["agent1"]) == {"agent1": "agent1 "}


@given(IDS)
def test_names_are_distinct_and_numbered_without_gaps(ids: set[str]) -> None:
    names = names_of(ids)
    assert len(set(names.values())) == len(ids)
    for kind in {name.split()[0] for name in names.values()}:
        numbers = sorted(int(name.split()[1]) for name in names.values() if name.split()[0] == kind)
        assert numbers == list(range(1, len(numbers) + 1))
