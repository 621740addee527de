"""A journal is read to its end, whatever others write to its topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from hypothesis import given, strategies as st

from topicproof.backend.address import Address
from topicproof.backend.errors import LogTooLong
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.sink import journal
from topicproof.backend.sink.entries import (
    ENTRY_BYTES_MAX,
    SENTENCE_MAX,
    Declared,
    Entry,
    FaultFired,
    FaultPhase,
    FaultReport,
    RunTopics,
    TaskStarted,
    TransactionEnded,
    WorkerBegan,
    decode,
    encode,
)
from topicproof.backend.sink.journal import JournalReader, append_to_journal, read_journal

ENDED = TransactionEnded("t", "id", "numbers", 0, 1, 1, Declared.COMMITTED, "", 5, 5, 5)
ENTRIES: tuple[Entry, ...] = (
    RunTopics({"numbers": "an-id", "squares": None}),
    TaskStarted("t", "id", "numbers", 0, 1, 0),
    ENDED,
    FaultFired("t", "crash@transaction=1", "numbers", 0, 1),
    FaultReport("crash", FaultPhase.DONE, "killed"),
    WorkerBegan("t", "numbers", 0, "host", 7, 1.5),
)


def test_foreign_records_and_markers_end_no_run(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: another program writes to a run's journal: text, JSON of another kind, fields of
    another type. Then a transaction of its own, whose marker is the last offset."""
    address, journal = Address(bootstrap), new_topic(partitions=1)
    for entry in ENTRIES[:3]:
        append_to_journal(address, journal, entry)
    foreign = Producer({**idempotent_producer_config(address), "transactional.id": f"{journal}-x"})
    foreign.init_transactions(20)
    foreign.begin_transaction()
    for value in (
        b"no json",
        b"[]",
        b"{}",
        encode(ENDED).replace(b'"sequence": 1', b'"sequence": "1"'),
    ):
        foreign.produce(journal, value)
    foreign.commit_transaction(20)
    assert read_journal(address, journal) == list(ENTRIES[:3])
    reader = JournalReader(address, journal)
    try:
        assert list(reader.news()) == list(ENTRIES[:3]) and list(reader.news()) == []
        append_to_journal(address, journal, ENTRIES[3])
        assert list(reader.news()) == [ENTRIES[3]]
        foreign.begin_transaction()
        foreign.produce(journal, b"no json either")
        foreign.abort_transaction(20)
        assert list(reader.news()) == []
    finally:
        reader.close()


def test_a_flooded_journal_takes_no_memory(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody fills the journal. What reads it whole says so, and what follows it passes
    over all but the newest entries."""
    address, name = Address(bootstrap), new_topic(partitions=1)
    entries = [replace(ENDED, sequence=sequence) for sequence in range(7)]
    for entry in entries[:5]:
        append_to_journal(address, name, entry)
    with closing(JournalReader(address, name, newest=2)) as reader:
        assert list(reader.news()) == entries[3:5]
        for entry in (*entries[5:], *entries):
            append_to_journal(address, name, entry)
        assert list(reader.news()) == entries[-2:] and list(reader.news()) == []
    limit = sum(map(len, map(encode, entries)))
    monkeypatch.setattr(journal, "BYTES_MAX", limit)
    with pytest.raises(LogTooLong, match="take that right away"):
        read_journal(address, name)
    monkeypatch.setattr(journal, "BYTES_MAX", 3 * limit)
    assert len(read_journal(address, name)) == 14
    monkeypatch.setattr(journal, "ENTRIES_MAX", 13)
    with pytest.raises(LogTooLong, match="more than 13 entries"):
        read_journal(address, name)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_reads_back_as_it_was_written(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


def test_an_entry_has_a_bound() -> None:
    with pytest.raises(ValueError, match="more than"):
        decode(encode(ENDED) + b" " * ENTRY_BYTES_MAX)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("inputs", str(9 * 10**4299)),
        ("sequence", str(2**63)),
        ("attempt", str(2**31)),
        ("next_offset", "-2"),
        ("task", r'"\ud800"'),
        ("transactional_id", json.dumps("x" * 1_001)),
    ],
)
def test_what_cannot_be_added_up_kept_or_shown_is_refused(field: str, text: str) -> None:
    """Story: somebody who may write to the journal wants to stop the dashboard: a count of 4,300
    digits, whose sum no reader of the history takes, half of a character, a name of a megabyte."""
    fields = json.loads(encode(ENDED))
    others = json.dumps({name: value for name, value in fields.items() if name != field})
    with pytest.raises(ValueError, match=f"its field {field} is larger"):
        decode(f'{others[:-1]}, "{field}": {text}}}'.encode())


@pytest.mark.parametrize("created", ["NaN", "1e999"])
def test_a_time_that_is_no_number_is_refused(created: str) -> None:
    worker = encode(ENTRIES[-1]).replace(b"1.5", created.encode())
    with pytest.raises(ValueError, match="its field created is larger"):
        decode(worker)


def test_a_long_reason_is_cut() -> None:
    """Story: a broker's message fills a page. The transaction is declared all the same."""
    ended = replace(ENDED, reason="x" * 5_000)
    assert decode(encode(ended)) == replace(ENDED, reason="x" * SENTENCE_MAX)
    # One that a program of another version has written.
    written = json.dumps({**json.loads(encode(ENDED)), "reason": "y" * 5_000}).encode()
    assert decode(written) == replace(ENDED, reason="y" * SENTENCE_MAX)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(entry=st.sampled_from(ENTRIES), data=st.data())
def test_a_changed_entry_is_refused_or_has_the_types_of_one(
    entry: Entry, data: st.DataObject
) -> None:
    """Story: somebody puts any JSON in place of a field, or of all."""
    fields = json.loads(encode(entry))
    name = data.draw(st.sampled_from(sorted(fields)))
    changed = data.draw(st.one_of(JSON, JSON.map(lambda value: {**fields, name: value})))
    try:
        decoded = decode(json.dumps(changed).encode())
    except ValueError:
        return
    assert decode(encode(decoded)) == decoded
