"""What the Check page reads: samples of two topics with the draft, Spark's opinion of expressions,
and the contract of an earlier check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import streamlit as st
from pyspark.sql import SparkSession

from topicproof.app.session.access import note_look, open_history
from topicproof.app.session.connection import decoders
from topicproof.app.session.page_masks import hidden_fields, require_unmasked
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.contracts.contract_text import (
    LABELS,
    identity_words,
    match_terms,
    side_label,
    spell,
)
from topicproof.backend.contracts.dead_letter_topics import find_letters, sample_letters
from topicproof.backend.contracts.draft import Draft, draft_from
from topicproof.backend.contracts.lint import lint, needs_spark
from topicproof.backend.contracts.sample import INPUTS, Sample, newest, older_outputs, samples
from topicproof.backend.errors import ContractError, Mistake, TopicproofError
from topicproof.backend.formats.formats import Formats
from topicproof.backend.history.audit import require_noted
from topicproof.backend.history.contract_of_run import Origin, contract_of_run, kept_origin
from topicproof.backend.history.store import Run
from topicproof.backend.runs.sides import SideSettings
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.validators.lineage.identity import KEY

LABEL_CHARACTERS_MAX = 300
"""A part of a record with a longer name is not offered as an identity."""


@dataclass(frozen=True)
class TopicSamples:
    """Samples of two topics, and what they propose."""

    inputs: Sample
    outputs: Sample
    draft: Draft
    labels: Mapping[str, tuple[str, ...]]
    """What can identify a record on each side, as labels, by `source` and `sink`."""


def drafted(clusters: SideSettings, kafka: Services, source: str, sink: str) -> TopicSamples:
    """Returns samples and draft of two topics, and notes the look at them. `kafka` is the sink's.
    Raises ClusterError, TopicError; UsageError, if the source's cluster has no address."""
    require_unmasked(clusters.sink, sink)
    require_unmasked(clusters.source or clusters.sink, source)
    subject = f"{source} and {sink}, the newest records for a draft, and of their dead letters"
    note_look(clusters.sink, subject)
    address = Address(kafka.bootstrap, clusters.sink.client, clusters.sink.cluster or "")
    others = None if clusters.source is None else decoders(clusters.source)
    sides = clusters.at(address)
    return _drafted(
        sides.sink.bootstrap,
        sides.source.bootstrap,
        source,
        sink,
        sides,
        decoders(clusters.sink),
        others,
        lambda topic: not hidden_fields(clusters.sink, topic),
    )


@st.cache_resource(
    ttl="2m", max_entries=4, show_spinner="Reading the newest records of both topics…"
)
def _drafted(
    bootstrap: str,  # noqa: ARG001 - part of the key, as is the next one
    source_bootstrap: str,  # noqa: ARG001
    source: str,
    sink: str,
    _sides: Sides,
    _formats: Formats,
    _source_formats: Formats | None,
    _may_read: Callable[[str], bool],
) -> TopicSamples:
    pair = samples(_sides, source, sink, _formats, _source_formats)
    older = older_outputs(_sides.sink, pair[1], _formats)
    labels = {side: _labels(sample) for side, sample in zip(("source", "sink"), pair, strict=True)}
    letters = find_letters(_sides, source, sink, _may_read)
    return TopicSamples(*pair, draft_from(*pair, _sides, older, letters), labels)


def sampled_letters(clusters: SideSettings, kafka: Services, topic: str) -> Sample | None:
    """Returns the newest dead letters of a topic, and notes the look at them; None without any, or
    if they are masked for this person. Raises ClusterError, TopicError."""
    if clusters.source is not None or hidden_fields(clusters.sink, topic):
        return None
    note_look(clusters.sink, f"{topic}, the newest dead letters")
    address = Address(kafka.bootstrap, clusters.sink.client, clusters.sink.cluster or "")
    return _letters(kafka.bootstrap, topic, address, decoders(clusters.sink))


@st.cache_resource(ttl="2m", max_entries=4, show_spinner="Reading the newest dead letters…")
def _letters(
    bootstrap: str,  # noqa: ARG001 - part of the key
    topic: str,
    _address: Address,
    _formats: Formats,
) -> Sample | None:
    return sample_letters(_address, topic, _formats)


def source_labels(clusters: SideSettings, kafka: Services, topic: str) -> tuple[str, ...]:
    """Returns what can identify a record of a source whose sink is a table, and notes the look at
    its newest records. Raises ClusterError, TopicError; NotPermitted, if they are masked for this
    person; UsageError, if the source's cluster has no address."""
    settings = clusters.source or clusters.sink
    require_unmasked(settings, topic)
    note_look(settings, f"{topic}, the newest records for a draft")
    address = clusters.other or Address(
        kafka.bootstrap, clusters.sink.client, clusters.sink.cluster or ""
    )
    return _source_labels(address.bootstrap, topic, address, decoders(settings))


@st.cache_resource(
    ttl="2m", max_entries=4, show_spinner="Reading the newest records of the source…"
)
def _source_labels(
    bootstrap: str,  # noqa: ARG001 - part of the key
    topic: str,
    _address: Address,
    _formats: Formats,
) -> tuple[str, ...]:
    return _labels(newest(_address, topic, INPUTS, _formats))


def _labels(sample: Sample) -> tuple[str, ...]:
    spelled = (parse_fields(f"identity: {name}")["identity"] for name in sample.candidates)
    labels = (side_label(identity) for identity in spelled)
    # A header may have a name of a megabyte, and what people choose from is kept.
    short = (label for label in labels if label and len(label) <= LABEL_CHARACTERS_MAX)
    return tuple(dict.fromkeys([*short, *LABELS]))


def mistakes(fields: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """Returns the mistakes that show without Spark: at once, while somebody types."""
    try:
        make_contract(parse_fields(spell(fields)))
    except ContractError as error:
        return error.mistakes
    return ()


def spark_mistakes(settings: Settings, fields: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """Returns all mistakes, Spark's included. Raises SparkError, SetupError; NotPermitted for
    people who may not check, as it starts Spark for a text of theirs."""
    if not needs_spark(dict(fields)):
        return mistakes(fields)
    require_noted(open_history(settings), Action.CHECK, "an expression")
    return _spark_mistakes(spell(fields), settings)


@st.cache_data(ttl="1h", max_entries=200, show_spinner="Spark checks the expressions…")
def _spark_mistakes(text: str, _found: Settings) -> tuple[Mistake, ...]:
    @contextmanager
    def spark() -> Iterator[SparkSession]:
        with services(_found, kafka=False) as up, spark_session(up.spark_remote) as session_:
            yield session_

    return lint(parse_fields(text), spark)


def kept(settings: Settings, label: str) -> Origin:
    """Returns a kept contract. Raises UsageError, ContractError."""
    return kept_origin(open_history(settings), label)


def of_run(settings: Settings, run: Run) -> Origin:
    """Returns the contract of a check. Raises ContractError, EvidenceError."""
    return contract_of_run(open_history(settings), run)


def matched_by(settings: Settings, run: Run) -> str | None:
    """Returns what a check matched records by, in words; None if that is not known."""
    identity = run.plan.get("identity")
    if identity == KEY and run.plan.get("contract"):
        # Plans of earlier versions have `key` for whatever is matched by its content.
        try:
            whole = make_contract(dict(of_run(settings, run).fields), "clusters" in run.plan)
        except TopicproofError:
            return None
        sinks = [contract for contract in whole.each() if run.facts.sink in contract.of.names]
        identity = match_terms(sinks[0].terms(None).match) if sinks else None
    return identity_words(identity) if identity else None
