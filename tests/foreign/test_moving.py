"""Topics that are still being written to are judged on a cut, and never condemned for moving."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.moving import judged, moving_pair, terms
from topicproof.backend.address import Address
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services
from topicproof.validators.finding import Outcome

RATE = 500


@pytest.mark.parametrize("grouped", [True, False], ids=["with its group", "without a group"])
def test_a_moving_pair_holds_as_far_as_it_is_judged(
    cluster: Services, tmp_path: Path, grouped: bool
) -> None:
    """Story: a source that is filled, and an exactly-once loop behind it. Each check says what it
    covered."""
    kafka = Cluster(Address(cluster.bootstrap))
    with moving_pair(kafka, RATE) as (source, sink, group):
        report = judged(
            kafka, cluster.spark_remote, terms(source, sink, group if grouped else None), tmp_path
        )
    assert report.verdict is Outcome.HOLDS, report.why
    movement = next(one for one in report.findings if one.kind == "movement")
    assert movement.count and report.source_records


def test_a_loss_shows_while_the_topics_move(cluster: Services, tmp_path: Path) -> None:
    """Story: the loop loses every hundredth input. What was due is missing, however the topics
    move."""
    kafka = Cluster(Address(cluster.bootstrap))
    with moving_pair(kafka, RATE, drop_every=100) as (source, sink, group):
        report = judged(kafka, cluster.spark_remote, terms(source, sink, group), tmp_path)
    assert report.verdict is Outcome.VIOLATED
    assert {
        one.kind for one in report.findings if one.primary and one.outcome is Outcome.VIOLATED
    } == {"gap"}
