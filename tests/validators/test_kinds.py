"""Each kind, on a topic broken in one way: found there, once, at the right offset, and nothing
else.

All stories are in one ledger, each in its own partitions: judged once, reported one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.validators import golden
from tests.validators.history import History, history, side_by_side
from topicproof.validators import evidence
from topicproof.validators.expectation import BY_CONTRACT, PREMISES
from topicproof.validators.finding import Witness
from topicproof.validators.kinds import aborted_read, gap
from topicproof.validators.kinds.catalogue import VALIDATORS, Validator
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.next_steps import OF_VIOLATIONS
from topicproof.validators.sentences import sentence

APART = 2
"""Partitions that each story has to itself."""

OF_TOPICS = [one for one in VALIDATORS if (Witness.COORDINATOR,) not in one.WITNESSES]
"""Those that need no coordinator; the others have stories of their own."""

Row = tuple[int | None, int | None, int | None, int | None, str | None]
"""(partition, offset, source partition, source offset, explained by)"""


@dataclass(frozen=True)
class Story:
    told: str
    sink: tuple[str, ...]
    made: dict[str, Any]
    found: dict[str, list[Row]]
    declared: dict[str, str]
    """What the journal says, by producer and sequence."""


def story(
    told: str,
    *sink: str,
    found: dict[str, list[Row]],
    declared: dict[str, str] | None = None,
    **made: Any,
) -> Story:
    return Story(told, sink, made, found, declared or {})


STORIES = {
    "healthy": story(
        "An aborted transaction was replayed and committed. There is nothing to find but what it"
        " takes of the log.",
        "0 1 2 C 3 4 A 3 4 5 C",
        inputs=6,
        found={"aborted_volume": [(0, 4, 0, 3, None)]},
    ),
    "produced twice": story(
        "Input 1 is committed in two transactions. The later copy is too many; the order it breaks"
        " is its own doing.",
        "0 1 C 1 2 C",
        inputs=3,
        found={"duplicate": [(0, 3, 0, 1, None)], "order": [(0, 3, 0, 1, "duplicate")]},
    ),
    "a copy elsewhere": story(
        "The copy of input 1 went to another partition, later. Each partition alone looks perfect.",
        "0 1 C",
        "_ _ _ _ 1 C",
        inputs=2,
        found={"duplicate": [(1, 4, 0, 1, None)]},
    ),
    "an earlier copy elsewhere": story(
        "The copy of input 1 in the first partition is the later one, by time. So the order there"
        " is its doing.",
        "_ _ _ 0 2 1 C",
        "1 C",
        inputs=3,
        found={"duplicate": [(0, 5, 0, 1, None)], "order": [(0, 5, 0, 1, "duplicate")]},
    ),
    "three copies": story(
        "Input 0 is committed three times. Two records are too many.",
        "0 C 0 C 0 C 1 C",
        inputs=2,
        found={
            "duplicate": [(0, 2, 0, 0, None), (0, 4, 0, 0, None)],
            "order": [(0, 2, 0, 0, "duplicate"), (0, 4, 0, 0, "duplicate")],
        },
    ),
    "two outputs": story(
        "Input 0 has two outputs where one is expected. The second is too many, by its index, and"
        " no duplicate.",
        "0#0 0#1 1#0 C",
        inputs=2,
        found={"phantom": [(0, 1, 0, 0, None)]},
    ),
    "left out": story(
        "Input 1 was never produced, although later ones were. That breaks no order.",
        "0 2 C 3 C",
        inputs=4,
        found={"gap": [(None, None, 0, 1, None)]},
    ),
    "lost tail": story(
        "The last transaction was aborted and never replayed. No neighbour is missing between two"
        " others.",
        "0 1 C 2 A",
        inputs=3,
        found={"gap": [(None, None, 0, 2, None)], "aborted_volume": [(0, 3, 0, 2, None)]},
    ),
    "swapped": story(
        "Inputs 1 and 2 changed places. One adjacent pair is inverted: the one that ends at"
        " input 1.",
        "0 2 1 3 C",
        inputs=4,
        found={"order": [(0, 2, 0, 1, None)]},
    ),
    "interleaved": story(
        "Two source partitions write to two sink partitions as they please. Each line is in order.",
        "b:1.0 0.0 b:1.2 C 0.2 C b:C",
        "b:1.1 b:C 0.1 C",
        inputs=[3, 3],
        found={"interleaving": [(0, 0, 1, 0, None)]},
    ),
    "skip switched off": story(
        "A whole chunk was produced again. Three duplicates, and one inversion of their making.",
        "0 1 2 C 0 1 2 C 3 C",
        inputs=4,
        found={
            "duplicate": [(0, 4, 0, 0, None), (0, 5, 0, 1, None), (0, 6, 0, 2, None)],
            "order": [(0, 4, 0, 0, "duplicate")],
        },
    ),
    "a swap behind a copy": story(
        "Between inputs 5 and 4, which are swapped, stands a copy of input 3. The inversion is not"
        " the copy's.",
        "0 1 2 3 5 3 4 C",
        inputs=6,
        found={
            "duplicate": [(0, 5, 0, 3, None)],
            "order": [(0, 5, 0, 3, "duplicate"), (0, 6, 0, 4, None)],
        },
    ),
    "aborted read": story(
        "A reader ignores the ABORT marker and shows input 1 of the aborted attempt, too. The rest"
        " follows from that.",
        "0 C 1* A 1 2 C",
        inputs=3,
        found={
            "aborted_read": [(0, 2, 0, 1, None)],
            "duplicate": [(0, 2, 0, 1, "aborted_read")],
            "order": [(0, 4, 0, 1, "aborted_read")],
            "reading_mismatch": [(0, 2, 0, 1, "aborted_read")],
            "aborted_volume": [(0, 2, 0, 1, None)],
        },
    ),
    "two producers": story(
        "Two producers share a partition; one aborts while the other commits. A marker belongs to"
        " its own producer.",
        "0 b:1.0 A b:1.1 0 1 b:C C",
        inputs=[2, 2],
        found={"aborted_volume": [(0, 0, 0, 0, None)]},
    ),
    "no such input": story(
        "One record has no lineage, one names an offset that the source never had, one a partition"
        " that it has not.",
        "0 ? 9 77.1 1 C",
        inputs=2,
        found={"phantom": [(0, 1, None, None, None), (0, 2, 0, 9, None), (0, 3, 77, 1, None)]},
    ),
    "no input there": story(
        "Offset 1 of the source is a marker or an aborted record. Nothing committed can stem"
        " from it.",
        "0 1 2 C",
        inputs=3,
        holes=[(0, 1)],
        found={"phantom": [(0, 1, 0, 1, None)]},
    ),
    "an aborted input": story(
        "Input 1 was aborted in the source. Who reads read_uncommitted processes it, and committed"
        " its output twice.",
        "0 1 2 C 1 C",
        inputs=3,
        aborted=[(0, 1)],
        found={
            "aborted_input": [(0, 1, 0, 1, None), (0, 4, 0, 1, None)],
            "phantom": [(0, 1, 0, 1, "aborted_input"), (0, 4, 0, 1, "aborted_input")],
        },
    ),
    "an aborted input left alone": story(
        "Inputs 1 and 3 were aborted in the source, and nobody processed them. An aborted output of"
        " 3 harms nobody.",
        "0 2 C 3 A",
        inputs=4,
        aborted=[(0, 1), (0, 3)],
        found={"aborted_volume": [(0, 3, 0, 3, None)]},
    ),
    "its own input": story(
        "A transaction read what it had written itself, before it was committed.",
        "0 1 C 2 C",
        inputs=3,
        writers={(0, 0): "d7", (0, 1): "a1", (0, 2): "a1"},
        found={"circular_flow": [(0, 1, 0, 1, None)]},
    ),
    "in a circle": story(
        "Each of two transactions read what the other one had written. A third only follows them.",
        "0 C b:1 b:C c:2 c:C",
        inputs=3,
        writers={(0, 0): "b1", (0, 1): "a1", (0, 2): "a1"},
        found={"circular_flow": [(0, 0, 0, 0, None), (0, 2, 0, 1, None)]},
    ),
    "in turn": story(
        "A transaction wrote to the source, and the same transactional id processed that in a later"
        " one.",
        "0 C 1 C",
        inputs=2,
        writers={(0, 0): "d7", (0, 1): "a1"},
        found={},
    ),
    "read in turn": story(
        "A reader went along, past a marker and an aborted transaction. Another session began"
        " anew.",
        "0 1 C 2 A 2 3 C",
        inputs=4,
        polls=["0-1/3 | 5-6", "0-1 5 | 6"],
        found={"aborted_volume": [(0, 3, 0, 2, None)]},
    ),
    "skipped and back": story(
        "The reader left offset 1 out, and offset 4. Then it went back behind the marker, for one"
        " record.",
        "0 1 C 2 3 4 C",
        inputs=5,
        polls=["0 3 | 5 3 | 4 5"],
        found={"poll_skip": [(0, 1, 0, 1, None), (0, 3, 0, 2, None), (0, 4, 0, 3, None)]},
    ),
    "read too early": story(
        "The reader received input 1 while its transaction was open, and input 2, which was aborted"
        " later.",
        "0 C 1 C 2 A",
        inputs=2,
        polls=["0/2 2/2 | 4"],
        found={
            "precommitted_read": [(0, 2, 0, 1, None), (0, 4, 0, 2, None)],
            "aborted_volume": [(0, 4, 0, 2, None)],
        },
    ),
    "in the dark": story(
        "Of the first and the second transaction the worker never heard how they ended. The markers"
        " tell.",
        "0 C 1 A 1 C",
        inputs=2,
        declared={"a1": "UNKNOWN:timed out", "a3": "COMMITTED"},
        found={
            "unknown_outcome": [(0, 0, 0, 0, None), (0, 2, 0, 1, None)],
            "aborted_volume": [(0, 2, 0, 1, None)],
        },
    ),
    "still in the dark": story(
        "Of the second transaction nobody knows anything yet: it is open.",
        "0 C 1",
        inputs=2,
        declared={"a1": "COMMITTED", "a2": "UNKNOWN"},
        found={
            "unknown_outcome": [(0, 2, 0, 1, "pending")],
            "gap": [(None, None, 0, 1, "pending")],
        },
    ),
    "a range that was cut": story(
        "Only inputs 1 and 2 of 5 are judged. The outputs of the others exist, are listed, and are"
        " explained.",
        "0 1 2 3 C",
        inputs=5,
        judged=[(1, 3)],
        found={"phantom": [(0, 0, 0, 0, "range"), (0, 3, 0, 3, "range")]},
    ),
    "pending": story(
        "Inputs 1 and 2 have no committed output, but the transaction of 1 is still open. It is not"
        " missing yet.",
        "0 C 1",
        inputs=3,
        found={"gap": [(None, None, 0, 1, "pending"), (None, None, 0, 2, None)]},
    ),
    "two fates": story(
        "One transaction wrote to two partitions. Its marker is COMMIT in one and ABORT in the"
        " other.",
        "0 1 C 3 C",
        "2 A",
        inputs=4,
        found={
            "fate_split": [(1, 0, 0, 2, None)],
            "torn": [(0, 0, 0, 0, "fate_split")],
            "gap": [(None, None, 0, 2, None)],
            "aborted_volume": [(1, 0, 0, 2, None)],
        },
    ),
    "a marker too late": story(
        "The COMMIT of the first transaction came when the second had begun (KAFKA-17754), and"
        " ended a part of it.",
        "0 1@2 C 2 C",
        inputs=3,
        found={"wrong_attribution": [(0, 0, 0, 0, None)], "late_append": [(0, 3, 0, 2, None)]},
    ),
    "no marker between": story(
        "Records of two transactions stand before one marker.",
        "0 1@2 C 2@3 C",
        inputs=3,
        found={"wrong_attribution": [(0, 0, 0, 0, None)]},
    ),
    "committed against the journal": story(
        "The worker was told that its second transaction was aborted. The marker is COMMIT, so its"
        " record is visible.",
        "0 C 1 C",
        inputs=2,
        declared={"a1": "COMMITTED", "a2": "ABORTED:no room"},
        found={
            "wrong_attribution": [(0, 2, 0, 1, None)],
            "aborted_read": [(0, 2, 0, 1, "wrong_attribution")],
        },
    ),
    "aborted against the journal": story(
        "The worker was told that its second transaction was committed. The marker is ABORT, so its"
        " output is missing.",
        "0 C 1 A",
        inputs=2,
        declared={"a1": "COMMITTED", "a2": "COMMITTED"},
        found={
            "wrong_attribution": [(0, 2, 0, 1, None)],
            "gap": [(None, None, 0, 1, "wrong_attribution")],
            "aborted_volume": [(0, 2, 0, 1, None)],
        },
    ),
    "behind its marker": story(
        "A Produce of the aborted transaction arrived late. The next transaction of its producer"
        " committed it.",
        "0 1 A 0 1@1 C",
        inputs=2,
        found={
            "late_append": [(0, 4, 0, 1, None)],
            "wrong_attribution": [(0, 4, 0, 1, "late_append")],
            "torn": [(0, 0, 0, 0, "wrong_attribution")],
            "aborted_volume": [(0, 0, 0, 0, None)],
        },
    ),
    "not delivered": story(
        "The marker of input 1 is COMMIT, and the client left it out. That is why its output is"
        " missing.",
        "0 1~ 2 C",
        inputs=3,
        found={
            "reading_mismatch": [(0, 1, 0, 1, None)],
            "torn": [(0, 0, 0, 0, "reading_mismatch")],
            "gap": [(None, None, 0, 1, "reading_mismatch")],
        },
    ),
    "a lost marker": story(
        "Compaction dropped the marker of the second transaction, so that its record is visible and"
        " nobody decided it.",
        "0 C 1*",
        inputs=2,
        lso=3,
        found={
            "resurrected": [(0, 2, 0, 1, None)],
            "marker_accounting": [(0, 2, None, None, "resurrected")],
        },
    ),
    "come back": story(
        "The second transaction was aborted. Its marker was lost, and its record came back as if"
        " committed.",
        "0 C 1*",
        inputs=2,
        lso=3,
        declared={"a1": "COMMITTED", "a2": "ABORTED"},
        found={
            "resurrected": [(0, 2, 0, 1, None)],
            "aborted_read": [(0, 2, 0, 1, "resurrected")],
            "marker_accounting": [(0, 2, None, None, "resurrected")],
        },
    ),
    "a lost marker, unseen": story(
        "Its marker is lost as well, but read_committed leaves the record out.",
        "0 C 1",
        inputs=1,
        lso=3,
        found={"marker_accounting": [(0, 2, None, None, None)]},
    ),
    "two markers": story(
        "An operator aborted a transaction that its coordinator committed a moment later.",
        "0 A C 0 C",
        inputs=1,
        found={
            "marker_accounting": [(0, 2, None, None, None)],
            "aborted_volume": [(0, 0, 0, 0, None)],
        },
    ),
    "empty transactions": story(
        "An empty transaction was aborted, and a coordinator that started anew wrote a COMMIT"
        " twice. Both are normal.",
        "0 C C A C 1 C",
        inputs=2,
        found={},
    ),
    "data that is gone": story(
        "Between the two markers stood data that compaction removed. Nothing is wrong with them,"
        " nor with sequences.",
        "0 A _ C 0^ C",
        inputs=1,
        found={"aborted_volume": [(0, 0, 0, 0, None)]},
    ),
    "somebody else": story(
        "The pipeline owns the sink, and two others wrote to it: one in transactions, without"
        " headers, one in none.",
        "0 b:1@ b:C 2! 3 C",
        inputs=4,
        found={
            "intruder": [(0, 1, None, None, None), (0, 3, None, None, None)],
            "interleaving": [(0, 0, 0, 0, None)],
        },
    ),
    "a copy of another log": story(
        "Somebody copied records of two transactional ids with their headers, in a transaction of"
        " its own. That is no wrong attribution.",
        "b:0@a1 b:1@c1 b:C",
        inputs=2,
        found={"intruder": [(0, 0, None, None, None)]},
    ),
    "a lower epoch": story(
        "The producer was fenced, and data of its old epoch was let in behind the new one's.",
        "a1:0 C a:1 C",
        inputs=2,
        found={"zombie_write": [(0, 2, None, None, None)], "identity_change": [(0, 0, 0, 0, None)]},
    ),
    "two writers": story(
        "Two transactional ids took turns with one source partition: neither knew of the other.",
        "0 2 C",
        "b:1 b:3 b:C",
        inputs=4,
        found={"zombie_write": [(1, 0, 0, 1, None)]},
    ),
    "handed over": story(
        "Another transactional id went on where the first one had ended.",
        "0 1 C",
        "b:2 b:3 b:C",
        inputs=4,
        found={},
    ),
    "a hole": story(
        "A batch of the producer is missing, although the log has no gap there.",
        "0 1 C 2^ C",
        inputs=3,
        found={"sequence_hole": [(0, 3, None, None, None)]},
    ),
    "a higher epoch": story(
        "A successor took over: the same producer id, the next epoch, sequences from 0.",
        "0 C a1:1 C",
        inputs=2,
        found={"identity_change": [(0, 0, 0, 0, None)]},
    ),
    "another producer id": story(
        "The coordinator had forgotten the transactional id, and gave it another producer id.",
        "0 C b:1@a2 b:C",
        inputs=2,
        found={"identity_change": [(0, 2, 0, 1, None)]},
    ),
}


def _side_by_side() -> History:
    return side_by_side(
        history(*one.sink, **one.made, first=APART * number)
        for number, one in enumerate(STORIES.values())
    )


@pytest.fixture(scope="module")
def ledger(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    declared = {
        (f"{name[0]}-{APART * number}", int(name[1:])): outcome
        for number, one in enumerate(STORIES.values())
        for name, outcome in one.declared.items()
    }
    made = _side_by_side().ledger(spark, tmp_path_factory.mktemp("stories"), declared=declared)
    assert made.doubts == ()
    return made


@pytest.fixture(scope="module")
def explained(ledger: Ledger) -> dict[str, dict[str, list[tuple[Row, str]]]]:
    """By story and kind, the rows as they would be if the story stood alone, with their
    sentences."""
    rows: dict[str, dict[str, list[tuple[Row, str]]]] = {name: {} for name in STORIES}
    for kind, row, why in sentences_of(ledger):
        place = row[0] if row[0] is not None else row[2]
        assert place is not None
        number = place // APART
        alone = tuple(None if one is None else one - APART * number for one in (row[0], row[2]))
        rows[list(STORIES)[number]].setdefault(kind, []).append(
            ((alone[0], row[1], alone[1], row[3], row[4]), why)
        )
    return rows


@pytest.fixture(scope="module")
def found(
    explained: dict[str, dict[str, list[tuple[Row, str]]]],
) -> dict[str, dict[str, list[Row]]]:
    return {
        name: {kind: [row for row, _why in rows] for kind, rows in kinds.items()}
        for name, kinds in explained.items()
    }


def rows_of(ledger: Ledger) -> Iterator[tuple[str, Row]]:
    return ((kind, row) for kind, row, _why in sentences_of(ledger))


def sentences_of(ledger: Ledger) -> Iterator[tuple[str, Row, str]]:
    columns = ("partition", "offset", "source_partition", "source_offset", "explained_by", "why")
    for validator in OF_TOPICS:
        rows = validator.find(ledger)
        for row in sorted(rows.select(*columns).collect(), key=str) if rows is not None else []:
            yield validator.NAME, (row[0], row[1], row[2], row[3], row[4]), row["why"]


@pytest.mark.parametrize("validator", VALIDATORS, ids=lambda validator: validator.NAME)
def test_each_kind_counts_in_plain_words(validator: Validator) -> None:
    """Story: a kind finds nothing, one or several, among one or several. Numbers, nouns and verbs
    agree."""
    counts = ((0, 1_000), (0, 1), (1, 1), (1, 1_000), (2, 1_000), (1_000, 1_000))
    lines = [sentence(validator.WORDS, count, covered) for count, covered in counts]
    if step := OF_VIOLATIONS.get(validator.NAME):
        lines.append(f"Next: {step}")
    golden.compare("kinds.txt", validator.NAME, lines)


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_in_plain_words(
    name: str, explained: dict[str, dict[str, list[tuple[Row, str]]]]
) -> None:
    """Story: its own, in `STORIES`. Each row says in one sentence what is wrong at its place."""
    story = STORIES[name]
    lines = [story.told, *(f"    {line}" for line in story.sink)]
    for kind, rows in explained[name].items():
        for (*place, cause), why in rows:
            lines.append(f"{kind} {_place(place)}{f' ({cause})' if cause else ''}: {why}")
    golden.compare("stories.txt", name, lines)


@pytest.mark.parametrize(
    ("file", "names"),
    [("kinds.txt", {one.NAME for one in VALIDATORS}), ("stories.txt", set(STORIES))],
)
def test_a_golden_file_has_no_section_of_something_gone(file: str, names: set[str]) -> None:
    """Story: a kind or a story was renamed. Its old sentences go with it."""
    assert set(golden.sections_of(golden.FOLDER / file)) == names


def _place(place: Sequence[object]) -> str:
    """`1@4 of input 0@3`: the partition and offset in the sink, and of the input."""
    sink = "nowhere" if place[0] is None else f"{place[0]}@{place[1]}"
    return sink if place[3] is None else f"{sink} of input {place[2]}@{place[3]}"


@pytest.mark.parametrize("name", STORIES)
def test_a_story_shows_what_happened_and_nothing_else(
    name: str, found: dict[str, dict[str, list[Row]]]
) -> None:
    """Story: its own, in `STORIES`. Kinds that are not named there found nothing."""
    assert found[name] == STORIES[name].found


UNSEEN = ("movement", "source_pending", "letter_repeated")


@pytest.mark.parametrize(
    "validator",
    [
        one
        for one in OF_TOPICS
        # These look at what the ledger of all stories does not have.
        if one.NAME not in (*BY_CONTRACT, *PREMISES, *UNSEEN)
    ],
    ids=lambda validator: validator.NAME,
)
def test_every_validator_has_the_same_shape(
    validator: Validator, ledger: Ledger, spark: SparkSession
) -> None:
    """Story: the report treats all kinds alike. So their rows, denominators and words must look
    alike."""
    empty = spark.createDataFrame([], evidence.COLUMNS)
    rows = validator.find(ledger)
    assert rows is not None and rows.schema.simpleString() == empty.schema.simpleString()
    assert validator.__name__.rpartition(".")[2] == validator.NAME  # type: ignore[attr-defined]
    assert validator.QUESTION.endswith("?") and validator.UNIT and validator.WITNESSES
    assert validator.covered(ledger) > 0
    assert re.match("(none of|all) 1,000 ", sentence(validator.WORDS, 0, 1_000))


def test_a_gap_tells_a_hole_from_the_lost_tail(ledger: Ledger) -> None:
    """Story: one input is missing between others, one at the end, where its transaction was
    aborted. The sentences differ, for the second is what a check of neighbours cannot see."""
    numbers = [list(STORIES).index(name) for name in ("left out", "lost tail")]
    found = gap.find(ledger)
    assert found is not None
    rows = found.where(f"source_partition in ({APART * numbers[0]}, {APART * numbers[1]})")
    assert [row["why"] for row in rows.orderBy("source_partition").collect()] == [
        "This input has no committed output, although later inputs of its partition have one. No"
        " aborted record names this input either, so the log shows no writer.",
        (
            "This input has no committed output, and no later input of its partition has one."
            f" Its output was aborted: squares-{APART * numbers[1]}@3, producer id"
            f" {1000 * (1 + APART * numbers[1]) + ord('a')}, epoch 0, aborted, no time known."
        ),
    ]


def test_the_journal_alone_shows_an_aborted_read(spark: SparkSession, tmp_path: Path) -> None:
    """Story: nobody read the raw log, but the worker wrote down that it aborted its second
    transaction. Its record is visible; of the third the journal knows nothing."""
    declared = {("a-0", 1): "COMMITTED", ("a-0", 2): "ABORTED", ("a-0", 3): "UNKNOWN"}
    ledger = history("0 C 1* A 1 C", inputs=2).ledger(
        spark, tmp_path, raw_log=False, declared=declared
    )
    found = aborted_read.find(ledger)
    assert found is not None and [row["offset"] for row in found.collect()] == [2]
    assert aborted_read.covered(ledger) == 2


def test_keys_identify_where_there_is_no_lineage(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the topics are someone else's, so their keys tell. Inputs 0 and 2 share a key, and one
    of them is missing; so is 3, and one key came twice. Inputs 5 and 6 were aborted, and only the
    key of 5 is nobody else's."""
    keys = {(0, 0): b"a", (0, 2): b"a", (0, 4): b"b", (0, 5): b"z", (0, 6): b"b"}
    made = history("0 1 ? 4 4 5 C", inputs=7, keys=keys, aborted=[(0, 5), (0, 6)])
    ledger = made.ledger(spark, tmp_path, identity=Identity.KEY)
    assert list(rows_of(ledger)) == [
        ("identity_repeated", (None, None, 0, 2, None)),
        ("duplicate", (0, 4, 0, 4, None)),
        ("gap", (None, None, 0, 2, None)),
        ("gap", (None, None, 0, 3, None)),
        ("order", (0, 4, 0, 4, "duplicate")),
        ("phantom", (0, 2, None, None, None)),
        ("phantom", (0, 5, 0, 5, "aborted_input")),
        ("aborted_input", (0, 5, 0, 5, None)),
    ]
