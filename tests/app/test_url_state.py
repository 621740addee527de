"""URL state and the snapshot that it addresses: pure functions."""

from __future__ import annotations

import pandas as pd
from hypothesis import given, strategies as st

from topicproof.app.shell.url_state import (
    COMMITTED,
    LEVELS,
    VALUES_MAX,
    CompareState,
    read_compare,
    read_topics,
    read_transactions,
    write_compare,
)
from topicproof.app.topic import snapshot
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

BOUNDS = Bounds(
    "squares",
    (PartitionBounds(0, 0, 10, 10), PartitionBounds(1, 5, 8, 12), PartitionBounds(2, 3, 3, 3)),
)
RANGES = pd.DataFrame(
    [
        (0, 0, 3, Fate.COMMITTED, 4, 0, None),
        (0, 4, 4, Fate.MARKER, 0, 0, "COMMIT"),
        (0, 5, 7, Fate.ABORTED, 3, 1, None),
        (0, 8, 8, Fate.MARKER, 0, 1, "ABORT"),
        (0, 9, 9, Fate.COMMITTED, 1, 2, None),
        (1, 5, 7, Fate.COMMITTED, 3, 3, None),
        (1, 8, 11, Fate.PENDING, 4, 4, None),
    ],
    columns=[
        "partition",
        "first_offset",
        "last_offset",
        "fate",
        "records",
        "transaction",
        "control",
    ],
)


@given(
    partition=st.sampled_from([0, 1]),
    offset=st.integers(5, 9),
    record=st.integers(5, 9),
    level=st.sampled_from(LEVELS),
    fates=st.lists(st.sampled_from(list(Fate)), unique=True),
    verdict=st.sampled_from([("", ""), ("check-1", ""), ("chain-1", "square")]),
)
def test_an_address_reopens_the_same_place(
    partition: int,
    offset: int,
    record: int,
    level: str,
    fates: list[Fate],
    verdict: tuple[str, str],
) -> None:
    """Story: any place that the page can show is written to the address and read back without a
    notice."""
    place = CompareState("squares", partition, offset, record, level, tuple(fates), *verdict)
    assert read_compare(write_compare(place), BOUNDS, None) == (place, [])


@given(
    st.dictionaries(
        st.sampled_from(["partition", "offset", "record", "level", "fate", "run"]), st.text()
    )
)
def test_any_address_is_some_place(params: dict[str, str]) -> None:
    """Story: an address is garbage. There is always a place to show, and it is in the topic."""
    place, _notices = read_compare(params, BOUNDS, (0, 5))
    (p,) = (p for p in BOUNDS.partitions if p.partition == place.partition)
    assert p.start <= place.offset <= max(p.start, p.hw - 1)
    assert p.start <= place.record <= max(p.start, p.hw - 1)


def test_an_address_without_a_place_shows_what_is_worth_it() -> None:
    """Story: only the topic is named. The first aborted record is shown, or else the beginning."""
    assert read_compare({}, BOUNDS, (0, 5))[0].offset == 5
    assert read_compare({"partition": "1"}, BOUNDS, (0, 5))[0] == CompareState(
        "squares", 1, 5, 5, "both", ()
    )
    assert read_compare({"level": COMMITTED}, BOUNDS, None)[0].offset == 0


def test_the_next_of_a_fate_goes_on_and_around() -> None:
    """Story: somebody presses "next" again and again: on this partition, then the following ones,
    then from the top."""
    assert snapshot.next_of(RANGES, 0, 0, Fate.MARKER) == (0, 4)
    assert snapshot.next_of(RANGES, 0, 4, Fate.MARKER) == (0, 8)
    assert snapshot.next_of(RANGES, 0, 8, Fate.MARKER) == (0, 4)
    assert snapshot.next_of(RANGES, 0, 9, Fate.COMMITTED) == (1, 5)
    assert snapshot.next_of(RANGES, 1, 5, Fate.GONE) is None


def test_a_click_finds_the_worst_of_its_cell() -> None:
    """Story: a cell of ten offsets is vermilion because of three. A click goes to the first of
    those."""
    assert snapshot.worst_place(RANGES, 0, 0, 10) == 5
    assert snapshot.worst_place(RANGES, 0, 6, 10) == 6
    assert snapshot.worst_place(RANGES, 1, 0, 8) == 5


def test_what_was_tried_again_is_looked_for_at_the_same_distance() -> None:
    """Story: the third record of an aborted transaction is the third of what replaced it, if that
    is as long."""
    assert snapshot.same_place(RANGES, 0, 5, 3) == [9]
    assert snapshot.same_place(RANGES, 0, 6, 3) == []
    assert snapshot.same_place(RANGES, 0, 4, 3) == []


def test_a_link_of_thousands_of_unknown_values_has_few_notices() -> None:
    """Story: somebody sends a link of 60 kB. What nobody knows is named, but not all of it."""
    words = [f"a{number}" for number in range(10_000)]
    params = {"fate": ",".join(words), "outcome": ",".join(words)}
    params["fields"] = ",".join(f"$[{word}" for word in words)
    no_transactions = pd.DataFrame({"producer_id": [], "partition": [], "first_offset": []})
    for notices in (
        read_compare(params, BOUNDS, None)[1],
        read_topics(params, BOUNDS)[1],
        read_transactions(params, BOUNDS, no_transactions)[1],
    ):
        assert VALUES_MAX < len(notices) <= 2 * (VALUES_MAX + 1)
        assert sum("only the first 20 values" in notice for notice in notices) >= 1
    assert read_compare({"fate": "pending,pending"}, BOUNDS, None)[0].fates == (Fate.PENDING,)
