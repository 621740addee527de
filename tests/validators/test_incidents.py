"""What happened, as sentences: one story and one next step, where the logs decide it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from tests.validators import golden
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.incidents.copies import CopyPair, Course, incident_of_pair
from topicproof.validators.incidents.group_offsets import incident_of_offsets_behind
from topicproof.validators.incidents.incident import Incident, Inputs, Writer, inputs_text
from topicproof.validators.incidents.losses import Loss, incident_of_loss, without_trace
from topicproof.validators.incidents.records import RANGES_MAX, OffsetRange, drop_step, ranges_of
from topicproof.validators.incidents.strangers import incident_of
from topicproof.validators.sentences import once_more

ORDERS = Bounds("orders", (PartitionBounds(0, 0, 20, 20), PartitionBounds(1, 0, 20, 20)))
INVOICES = Bounds("invoices", (PartitionBounds(0, 0, 30, 30),))
NOON_MS = 1_764_331_200_000
A, B = Writer("job-a", 23, (0, 0)), Writer("job-b", 24, (0, 0))
UNNAMED = Writer(None, 35, (0, 0))
PAIR = CopyPair(A, B, Course.TOGETHER, 2, (Inputs(0, 8, 9, 2),), NOON_MS)
LOSS = Loss(
    writer=A,
    reason="declared",
    lost=(Inputs(0, 1, 4, 4),),
    again=(Inputs(0, 0, 0, 1),),
    open_ms=1_200,
    successor=None,
    went_on="orders-0@5, whose output is invoices-0@7 by producer id 23, epoch 0, committed",
)


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ((Inputs(0, 7, 7, 1),), "orders-0@7"),
        ((Inputs(1, 0, 9, 10),), "orders-1@0-9"),
        ((Inputs(0, 5, 10, 2),), "orders-0@5 and @10"),
        ((Inputs(0, 5, 10, 3),), "3 of orders-0@5-10"),
        ((Inputs(0, 5, 10, 2), Inputs(1, 3, 3, 1)), "3 inputs of 2 partitions"),
    ],
)
def test_inputs_are_named_by_their_places(ranges: tuple[Inputs, ...], text: str) -> None:
    """Story: somebody looks up the inputs of a finding; the text leads to them."""
    assert inputs_text(ORDERS, ranges) == text


@pytest.mark.parametrize(
    ("course", "story", "step"),
    [
        (Course.TOGETHER, "were open at the same time", "KIP-447"),
        (Course.IN_TURNS, "job-a wrote on after job-b had begun", "KIP-447"),
        (Course.HANDED_OVER, "took over from an older offset", "sendOffsetsToTransaction"),
        (Course.UNDECIDED, "Nothing tells whether job-a was still at work", "If so: "),
    ],
)
def test_two_writers_of_copies_have_one_story(course: Course, story: str, step: str) -> None:
    """Story: two producers wrote the same outputs. Whether both were at work, or one took over at
    an older offset, decides what to do: only where nothing proves it are there two ways."""
    incident = incident_of_pair(replace(PAIR, course=course), ORDERS)
    assert story in incident.story
    assert "orders-0@8-9" in incident.story
    assert step in incident.next_step
    assert ("If not: " in incident.next_step) == (course is Course.UNDECIDED)
    assert "2025-11-28 12:00:00 UTC" in incident.next_step


@pytest.mark.parametrize(
    ("course", "story", "step"),
    [
        (Course.RESTARTED, "its epoch rose between them (0, then 1)", "began at an older"),
        (Course.AGAIN, "in different transactions", "position went back"),
        (Course.IN_ONE_TRANSACTION, "in one transaction", "retry of its own"),
        (Course.RAISED, "raised its epoch between them (0, then 1)", "time-out"),
        (Course.SENT_TWICE, "application itself sent the outputs of orders-0@8-9 twice", "retry"),
        (Course.UNNAMED, "without idempotence", "enable.idempotence=true"),
    ],
)
def test_one_writer_of_copies_has_another_story(course: Course, story: str, step: str) -> None:
    """Story: one producer wrote both copies: nobody is sent to look for a second instance."""
    pair = replace(PAIR, later=Writer("job-a", 23, (1, 1)), course=course)
    incident = incident_of_pair(pair, ORDERS)
    assert story in incident.story
    assert step in incident.next_step
    assert "KIP-447" not in incident.next_step


def test_copies_behind_markers_name_the_markers() -> None:
    """Story: the repeated inputs are those behind markers of the source (SPARK-25214)."""
    pair = replace(PAIR, course=Course.SENT_TWICE, later=A)
    incident = incident_of_pair(pair, ORDERS, ["orders-0@4", "orders-0@9"])
    assert incident.story.endswith(
        "Each of these inputs follows an offset of its own that holds no input, such as a"
        " transaction marker: orders-0@4, orders-0@9."
    )
    assert "failOnDataLoss=false" in incident.next_step


@pytest.mark.parametrize(
    ("reason", "successor", "story", "step"),
    [
        ("declared", None, "it aborted the transaction itself", "After abortTransaction()"),
        ("timeout", None, "after 1.2 s, because it had been open longer than its", "hung or died"),
        (
            "fenced",
            (1, NOON_MS),
            "epoch 1 wrote, first at 2025-11-28 12:00:00 UTC",
            "first offset from after that",
        ),
        ("fenced", None, "or by an operator's fenceProducers", "first offset from after that"),
        ("operator", None, "an operator aborted the transaction", "After an abort"),
        (None, None, "nothing tells why", "After an abort"),
    ],
)
def test_a_lost_output_tells_of_its_transaction(
    reason: str | None, successor: tuple[int, int] | None, story: str, step: str
) -> None:
    """Story: the outputs were written and aborted. The story says by whom and why, which others
    were processed again, and where the pipeline went on; the step repairs only what is lost."""
    incident = incident_of_loss(replace(LOSS, reason=reason, successor=successor), ORDERS)
    assert story in incident.story
    assert "processed orders-0@0 again, but committed no output of orders-0@1-4" in incident.story
    assert "The pipeline went on with orders-0@5" in incident.story
    assert step in incident.next_step
    assert incident.next_step.endswith(once_more("orders-0@1-4"))
    assert "without a commit for the pipeline's group" in once_more("orders-0@1-4")


@pytest.mark.parametrize(
    ("are_of_pipeline", "holes", "story", "step"),
    [
        (True, ["orders-0@4"], "an offset without an input, such as a transaction", "empty mess"),
        (True, [], "they are the pipeline's own", "what else it writes"),
        (False, [], "wrote no expected output", "names who may write to"),
    ],
)
def test_records_without_an_input_are_of_the_pipeline_or_of_others(
    are_of_pipeline: bool, holes: list[str], story: str, step: str
) -> None:
    """Story: records belong to no input. Those of the pipeline's own producers are its fault."""
    incident = incident_of(
        sinks="invoices",
        producers=[23],
        are_of_pipeline=are_of_pipeline,
        are_of_others=not are_of_pipeline,
        holes=holes,
        drop=drop_step(ORDERS, "these records", [OffsetRange(0, 4, 4)]),
    )
    assert incident is not None
    assert '"ProducerId set to 23"' in incident.next_step
    assert "must drop these records (orders-0@4)" in incident.next_step
    assert story in incident.story
    assert step in incident.next_step


def test_the_records_to_drop_are_named_completely() -> None:
    """Story: ten copies are shown as three rows and "7 more". Whoever drops them needs all."""
    ranges = [OffsetRange(0, 6, 10), OffsetRange(0, 18, 18)]
    assert drop_step(INVOICES, "the later copies", ranges) == (
        "Consumers of invoices must drop the later copies (invoices-0@6-10, invoices-0@18): Kafka"
        " removes none."
    )
    many = [OffsetRange(0, 2 * place, 2 * place) for place in range(RANGES_MAX + 1)]
    assert "(each row of findings.csv in the evidence)" in drop_step(INVOICES, "them", many)


def test_ranges_are_consecutive_records(spark: SparkSession) -> None:
    """Story: copies lie around a marker, and in two partitions: neither joins a range."""
    places = [(0, 6), (0, 7), (0, 9), (1, 8), (0, 7), (0, None)]
    rows = spark.createDataFrame(places, "partition int, offset long")
    assert ranges_of(rows) == [OffsetRange(0, 6, 7), OffsetRange(0, 9, 9), OffsetRange(1, 8, 8)]


def every_incident() -> Iterator[tuple[str, Incident | None]]:
    """Each story, by its name."""
    for course in Course:
        later = B
        if course in (Course.RESTARTED, Course.RAISED):
            later = replace(A, epochs=(1, 1))
        elif course in (Course.AGAIN, Course.IN_ONE_TRANSACTION, Course.SENT_TWICE):
            later = A
        pair = replace(PAIR, course=course, later=later)
        yield f"copies: {course.name}", incident_of_pair(pair, ORDERS)
    plain = replace(PAIR, course=Course.SENT_TWICE, first=UNNAMED, later=UNNAMED)
    yield "copies behind markers", incident_of_pair(plain, ORDERS, ["orders-0@7", "orders-0@8"])
    for reason in ("declared", "timeout", "fenced", "operator", None):
        yield f"losses: {reason}", incident_of_loss(replace(LOSS, reason=reason), ORDERS)
    fenced = replace(LOSS, reason="fenced", successor=(1, NOON_MS), again=(), went_on="")
    yield "losses: fenced by a successor", incident_of_loss(fenced, ORDERS)
    step = "Next step of a loss without a trace."
    yield (
        "losses: without a trace",
        Incident(without_trace("orders-0@4", "invoices", may_come=False), step),
    )
    yield (
        "losses: a tail without a trace",
        Incident(without_trace("orders-0@8-9", "invoices", may_come=True), step),
    )
    for course, later in ((Course.AGAIN, A), (Course.HANDED_OVER, B)):
        pair = replace(PAIR, course=course, later=later, inputs=(Inputs(0, 3, 6, 2),))
        low = incident_of_pair(pair, ORDERS, began_one_low=True)
        yield f"copies: {course.name}, one too low", low
    for name, is_one_low, is_same_fault in (
        ("several", False, False),
        ("one too low", True, False),
        ("one too low, as the duplicates", True, True),
    ):
        behind = incident_of_offsets_behind(
            "orders-0@9" if is_one_low else "orders-0@1-4",
            "group orders",
            "`COMMAND`",
            is_one_low=is_one_low,
            is_same_fault=is_same_fault,
        )
        yield f"group behind: {name}", behind
    for name, of_pipeline, holes in (
        ("pipeline", True, []),
        ("markers", True, ["orders-0@4", "orders-0@9"]),
        ("others", False, []),
    ):
        incident = incident_of(
            sinks="invoices",
            producers=[37, 38],
            are_of_pipeline=of_pipeline,
            are_of_others=not of_pipeline,
            holes=holes,
            drop=drop_step(INVOICES, "these records", [OffsetRange(0, 4, 4)]),
        )
        yield f"strangers: {name}", incident


def test_every_story_is_worded_for_a_person() -> None:
    """Story: a person has read each story and its next step. Who changes one reads it again."""
    for name, incident in every_incident():
        assert incident is not None
        golden.compare("incidents.txt", name, [incident.story, f"Next: {incident.next_step}"])
    assert set(golden.sections_of(golden.FOLDER / "incidents.txt")) == {
        name for name, _ in every_incident()
    }
