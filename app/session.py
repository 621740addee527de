"""State that outlives one rerun of a page: settings, the history, the connection to Kafka, and what
was read.

Nothing here is the only copy: restarting the dashboard loses nothing but time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pandas as pd
import streamlit as st
from pyarrow import ArrowInvalid

from topicproof.app.entrance import current_identity
from topicproof.app.found import Found
from topicproof.app.found import found_in as findings_in
from topicproof.app.snapshot import Snapshot, Watch, fingerprint, same_place
from topicproof.app.url_state import TopicsState
from topicproof.app.wording import plain
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, NotPermitted, TopicproofError, UsageError
from topicproof.backend.evidence.copy import without_values
from topicproof.backend.evidence.folder import REPORT, evidence_hash, evidence_in
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.formats.formats import Formats
from topicproof.backend.history.audit import allow
from topicproof.backend.history.export import export_zip
from topicproof.backend.history.signoff import Signoff, signoffs, standing_text
from topicproof.backend.history.store import History, Run
from topicproof.backend.kafka.browse.describe import (
    ClusterView,
    Placement,
    Setting,
    describe_cluster,
    describe_topic,
)
from topicproof.backend.kafka.browse.overview import Overview, TopicOverview, newest_fates
from topicproof.backend.kafka.browse.overview import overview as take_overview
from topicproof.backend.kafka.browse.records import Record, read_window
from topicproof.backend.kafka.browse.search import Row, Search, offset_at, search, search_all
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.coordinator import (
    PRODUCER_COLUMNS,
    open_transactions,
    topic_producers,
)
from topicproof.backend.kafka.coordination.lag import GroupLag, group_lags
from topicproof.backend.kafka.coordination.reasons import abort_reasons, transactional_ids
from topicproof.backend.kafka.coordination.share import ShareGroup, share_groups
from topicproof.backend.kafka.coordination.transaction_state import TOPIC as STATE_TOPIC
from topicproof.backend.kafka.coordination.transaction_state import (
    client_versions,
    is_exposed,
    read_states,
)
from topicproof.backend.kafka.log.client import require_reachable
from topicproof.backend.kafka.log.rawlog import connect, fetch_bounds
from topicproof.backend.kafka.mirror_offsets import Checkpoint, checkpoints
from topicproof.backend.properties.registry import RegistryFacts
from topicproof.backend.runs.stage_verdicts import stage_folder
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.trust.acting import machine_user
from topicproof.backend.trust.identity import Action, Identity, require
from topicproof.backend.trust.login import configured_login
from topicproof.backend.trust.masking import Field, masked_fields, masked_headers, masked_part
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.report import Report

REOPENED_AGE_MAX_S = 5.0
"""Maximum age of a snapshot when a page has just been opened."""
LIVE_AGE_MAX_S = 1.5
COORDINATION_AGE_MAX_S = 5
OVERVIEW_AGE_MAX_S = 5
RUNS_SHOWN = 200
CLUSTER = "cluster"
"""The parameter of the URL that names a cluster."""
ATTEMPTS_FOLLOWED = 3


@contextmanager
def said() -> Iterator[None]:
    """Shows an error in the block on the page and stops the page: no traceback, and no silence."""
    try:
        yield
    except TopicproofError as error:
        show(error)
        st.stop()


def show(error: TopicproofError) -> None:
    st.error(plain(str(error)), title=_title(error), icon=":material/error:")


def _title(error: TopicproofError) -> str:
    if isinstance(error, NotPermitted):
        return "You may not do that"
    return "The request to Kafka failed" if isinstance(error, ClusterError) else "That did not work"


def settings() -> Settings:
    """Returns the settings, for the cluster in the URL if it is a known one."""
    base = read_settings()
    cluster = st.query_params.get(CLUSTER)
    if cluster and cluster in base.named_clusters:
        return read_settings(cluster=cluster)
    return base


def history(found: Settings) -> History:
    """Returns the history, for the person who has this page open. Raises NotPermitted if their
    login has ended."""
    return _history(found.database_url, found).acted_on_by(identity(found))


def identity(found: Settings) -> Identity:
    """Returns who has this page open. Raises NotPermitted if their login has ended."""
    login = configured_login(found)
    return machine_user(found) if login is None else current_identity(login)


def may(action: Action) -> bool:
    """Whether this person's roles allow an action. The backend asks again: this only spares them
    what it would refuse."""
    try:
        require(identity(settings()), action)
    except NotPermitted:
        return False
    return True


def hidden(found: Settings, *topics: str | None) -> tuple[Field, ...]:
    """Returns what this person does not see of these topics, by the rules of the login."""
    login = configured_login(found)
    if login is None or not login.masks:
        return ()
    by = identity(found)
    return tuple(one for topic in topics if topic for one in masked_fields(login.masks, topic, by))


Shown = TypeVar("Shown", Record, Row)


def masked(fields: Sequence[Field], rows: Sequence[Shown]) -> tuple[Shown, ...]:
    """Returns the records without what is `hidden`."""
    if not fields:
        return tuple(rows)
    return tuple(
        replace(
            one,
            key=masked_part("key", one.key, fields),
            value=masked_part("value", one.value, fields),
            headers=masked_headers(one.headers, fields),
        )
        for one in rows
    )


def require_shown(found: Settings, *topics: str | None) -> None:
    """Raises NotPermitted if parts of the topics are masked for this person."""
    if hidden(found, *topics):
        names = ", ".join(dict.fromkeys(filter(None, topics)))
        raise NotPermitted(
            f"Parts of the payloads of {names} are masked for your role. What depends on whole"
            " payloads is not shown: searches by content, drafts and previews of contracts."
        )


def looked(found: Settings, what: str) -> None:
    """Notes once in the audit log that this person looks at payloads, if there is a login. Raises
    NotPermitted."""
    if found.login is None:
        return
    seen: set[str] = st.session_state.setdefault("looked_at", set())
    if what not in seen:
        allow(history(found), Action.LOOK, what)
        seen.add(what)


@st.cache_resource(max_entries=4, show_spinner=False, on_release=lambda held: held.engine.dispose())
def _history(_url: str, _found: Settings) -> History:
    return History(_found)


@dataclass(frozen=True)
class Held:
    """The services, kept running as long as this dashboard needs them."""

    services: Services
    stack: ExitStack


def kafka(found: Settings) -> Services:
    """Returns the running Kafka; starts the embedded one if necessary. Raises ClusterError,
    SetupError."""
    held = _held(str(found.home), found.bootstrap, found.brokers, found)
    require_reachable(held.services.address)
    return held.services


def _answers(held: Held) -> bool:
    """Whether Kafka still answers. An embedded Kafka that does not was stopped from outside; its
    keeper starts it again on the next request."""
    try:
        require_reachable(held.services.address)
    except TopicproofError:
        return False
    return True


@st.cache_resource(
    max_entries=4,
    show_spinner="Connecting to Kafka, which is started if it is not running…",
    validate=_answers,
    on_release=lambda held: held.stack.close(),
)
def _held(home: str, bootstrap: str | None, brokers: int, _found: Settings) -> Held:  # noqa: ARG001 - the key
    stack = ExitStack()
    return Held(stack.enter_context(services(_found, spark=False)), stack)


def formats(found: Settings) -> Formats:
    """Returns the decoders of keys and values. Raises UsageError for a schema file that cannot be
    read."""
    return _formats(found.registry, tuple(found.avro_files.items()))


@st.cache_resource(max_entries=4, show_spinner=False, on_release=Formats.close)
def _formats(registry: RegistryFacts | None, avro: tuple[tuple[str, Path], ...]) -> Formats:
    return Formats(registry, dict(avro))


def topics(found: Settings, kafka: Services, wanted: str | None) -> list[str]:
    """Returns the names of the cluster's topics; asks again if the wanted topic is unknown."""
    known = _topics(kafka.bootstrap, found)
    if wanted is not None and wanted not in known:
        _topics.clear()
        known = _topics(kafka.bootstrap, found)
    return known


@st.cache_data(ttl=5, max_entries=4, show_spinner="Asking Kafka for its topics…")
def _topics(bootstrap: str, _found: Settings) -> list[str]:
    return Cluster(Address(bootstrap, _found.client)).topics()


def snapshot(found: Settings, kafka: Services, topic: str, live: bool) -> Snapshot:
    """Returns the topic's snapshot: a recent one for a page that was just opened, a current one
    while the topic is `live`, otherwise the previous one."""
    kept = st.session_state.get("snapshot_of") == topic
    age_max_s = LIVE_AGE_MAX_S if live else float("inf") if kept else REOPENED_AGE_MAX_S
    if st.session_state.pop("look_again", None) == topic:
        age_max_s = 0.0
    watch = _watch(kafka.bootstrap, topic)
    with nullcontext() if live else st.spinner(f"Reading the batch headers of {plain(topic)}…"):
        taken = watch.get(Address(kafka.bootstrap, found.client), age_max_s)
    st.session_state["snapshot_of"] = topic
    return taken


def current(found: Settings, kafka: Services, topic: str, age_max_s: float) -> Snapshot:
    """Returns a snapshot of the topic that is at most so old, whatever other pages keep. Raises
    ClusterError, TopicError."""
    return _watch(kafka.bootstrap, topic).get(Address(kafka.bootstrap, found.client), age_max_s)


def look_again(topic: str) -> None:
    """Makes the next snapshot of the topic a new one."""
    st.session_state["look_again"] = topic


@st.cache_resource(max_entries=12, ttl="1h", show_spinner=False)
def _watch(bootstrap: str, topic: str) -> Watch:  # noqa: ARG001 - the address is part of the key
    return Watch(topic)


def window(
    found: Settings, kafka: Services, seen: Snapshot, partition: int, first: int, count: int
) -> tuple[Record, ...]:
    """Returns the records of a window, as this person may see them."""
    topic, last = seen.bounds.topic, first + count - 1
    looked(found, f"{topic}-{partition}, offsets {first} to {last}")
    return masked(hidden(found, topic), whole_window(found, kafka, seen, partition, first, count))


def whole_window(
    found: Settings, kafka: Services, seen: Snapshot, partition: int, first: int, count: int
) -> tuple[Record, ...]:
    """Reads the records of a window once, and again when the fates of its offsets change. Nothing
    is masked."""
    mark = fingerprint(seen, partition, first, first + count)
    return _window(
        kafka.bootstrap, seen.bounds.topic, partition, first, count, mark, found.client, seen
    )


@st.cache_resource(max_entries=64, ttl="10m", show_spinner="Reading the records at both levels…")
def _window(
    bootstrap: str,
    topic: str,
    partition: int,
    first: int,
    count: int,
    mark: str,  # noqa: ARG001 - part of the key
    _client: Mapping[str, str],
    _seen: Snapshot,
) -> tuple[Record, ...]:
    found = _seen.bounds, _seen.ranges, _seen.batches
    return tuple(read_window(Address(bootstrap, _client), topic, partition, first, count, *found))


@dataclass(frozen=True)
class Coordination:
    """What coordinators and leaders know of a topic's transactions, besides its log."""

    opened: tuple[OpenTransaction, ...]
    producers: pd.DataFrame
    names: Mapping[int, str]
    """Transactional ids by producer id, as far as they are still remembered."""
    reasons: Mapping[tuple[int, int], str]
    """Why a transaction was aborted (`reasons`), by partition and first offset; only proven
    reasons."""
    exposed: Mapping[str, bool | None]
    """Whether late requests can reach the next transaction (`is_exposed`), by transactional id;
    only ids in the coordinators' log."""
    not_heard: str | None
    """Which brokers did not answer, and why; their information is missing above."""


def coordination(found: Settings, kafka: Services, seen: Snapshot) -> Coordination:
    """Queries once per snapshot, and again after a moment, because open transactions age."""
    return _coordination(kafka.bootstrap, seen.bounds.topic, seen.taken_at, found.client, seen)


@st.cache_resource(
    ttl=COORDINATION_AGE_MAX_S, max_entries=12, show_spinner="Asking the transaction coordinators…"
)
def _coordination(
    bootstrap: str,
    topic: str,
    taken_at: datetime,  # noqa: ARG001 - part of the key
    _client: Mapping[str, str],
    _seen: Snapshot,
) -> Coordination:
    try:
        with connect(Address(bootstrap, _client)) as kafka:
            opened = open_transactions(kafka, topic, _seen.bounds, _seen.ranges)
            producers = topic_producers(kafka, topic)
    except ClusterError as error:
        nobody = pd.DataFrame(columns=list(PRODUCER_COLUMNS))
        return Coordination((), nobody, {}, {}, {}, str(error))
    remembered = producers.dropna(subset=["transactional_id"])
    names = dict(zip(remembered["producer_id"], remembered["transactional_id"], strict=True))
    if _seen.transactions.empty:
        return Coordination(opened, producers, names, {}, {}, None)
    try:
        reasons, told, exposed = _told_by_log(
            bootstrap, _seen.bounds, _client, _seen.transactions, names
        )
    except ClusterError as error:
        unheard = f"The coordinators' own log: {error}"
        return Coordination(opened, producers, names, {}, {}, unheard)
    return Coordination(opened, producers, told | names, reasons, exposed, None)


@st.cache_resource(ttl="1h", max_entries=12, show_spinner="Reading the coordinators’ own log…")
def _told_by_log(
    bootstrap: str,
    within: Bounds,
    _client: Mapping[str, str],
    _ended: pd.DataFrame,
    _names: Mapping[int, str],
) -> tuple[dict[tuple[int, int], str], dict[int, str], dict[str, bool | None]]:
    """Returns why the transactions within these bounds were aborted, the transactional ids, and
    which of these are exposed. Reads once, because ended transactions do not change. Raises
    ClusterError."""
    # An id's log is in one partition; if a name is unknown, all partitions must be read.
    known = set(_ended["producer_id"]) <= _names.keys()
    bounds = fetch_bounds(Address(bootstrap, _client), STATE_TOPIC)
    states = read_states(
        Address(bootstrap, _client), bounds, set(_names.values()) if known else None
    )
    places = zip(_ended["partition"], _ended["first_offset"], strict=True)
    found = zip(places, abort_reasons(within.topic, _ended, states), strict=True)
    reasons = {place: reason for place, reason in found if reason is not None}
    exposed = {name: is_exposed(version) for name, version in client_versions(states).items()}
    return reasons, transactional_ids(states), exposed


def searched(
    found: Settings,
    kafka: Services,
    seen: Snapshot,
    look: TopicsState,
    told: Callable[[int, int], None],
) -> dict[int, Search]:
    """Returns the result of the URL's search by partition. Kept until another search is
    requested."""
    key = (
        kafka.bootstrap,
        look.topic,
        look.partition,
        look.offset,
        look.time_ms,
        look.wanted,
        look.newest,
        seen.taken_at,
    )
    kept = st.session_state.get("searched")
    if kept is None or kept[0] != key:
        if look.key or look.value or look.header:
            # Whether a record is found would tell what is masked in it.
            require_shown(found, look.topic)
        where = "all partitions" if look.partition is None else f"partition {look.partition}"
        looked(found, f"{look.topic}, a search of {where}")
        address = Address(kafka.bootstrap, found.client)
        bounds, ranges, wanted = seen.bounds, seen.ranges, look.wanted
        decoders = formats(found)

        def decode(value: bytes) -> str | None:
            return decoders.decode(value, bounds.topic).text

        text = decode if decoders.configured else None
        if look.partition is None:
            answer = search_all(address, bounds, ranges, wanted, told, look.newest, text)
        else:
            p, first = seen.partition(look.partition), look.offset
            if first is None and look.time_ms is not None:
                first = offset_at(address, seen.bounds, p.partition, look.time_ms)
            if first is None:
                first = p.hw if look.newest else p.start
            place = address, bounds, ranges, p.partition, first
            one = search(*place, wanted, told, look.newest, text=text)
            answer = {p.partition: one}
        answer = {
            number: replace(one, rows=masked(hidden(found, bounds.topic), one.rows))
            for number, one in answer.items()
        }
        kept = st.session_state["searched"] = (key, answer)
    return dict(kept[1])


@st.cache_data(ttl=30, max_entries=4, show_spinner="Asking for brokers and topics…")
def cluster_view(bootstrap: str, _client: Mapping[str, str]) -> ClusterView:
    return describe_cluster(Address(bootstrap, _client))


@st.cache_resource(
    ttl=OVERVIEW_AGE_MAX_S,
    max_entries=4,
    show_spinner="Asking about every topic and group…",
    # A page that polls shows the last answer while the next one is on its way.
    refresh_mode="background",
)
def overview(bootstrap: str, _client: Mapping[str, str]) -> Overview:
    """Returns every topic at a glance. Raises ClusterError."""
    return take_overview(Address(bootstrap, _client))


def newest(
    found: Settings, kafka: Services, topics: Sequence[TopicOverview]
) -> tuple[dict[str, Mapping[Fate, int]], dict[str, str]]:
    """Returns the fates of the newest records (`newest_fates`) of the topics that `read_newest` has
    read, and why others could not be read."""
    known = _newest(kafka.bootstrap, found.client)
    told = {
        one.topic: known[one.topic][1]
        for one in topics
        if one.topic in known and known[one.topic][0] == one.bounds
    }
    fates = {topic: said for topic, said in told.items() if not isinstance(said, str)}
    refused = {topic: said for topic, said in told.items() if isinstance(said, str)}
    return fates, refused


def read_newest(
    found: Settings, kafka: Services, topics: Sequence[TopicOverview], budget_s: float
) -> None:
    """Reads the newest batch headers of topics that moved since they were read, as many as the
    budget allows. Raises ClusterError."""
    known = _newest(kafka.bootstrap, found.client)
    deadline = time.monotonic() + budget_s
    with connect(Address(kafka.bootstrap, found.client)) as client:
        for one in topics:
            if one.topic in known and known[one.topic][0] == one.bounds:
                continue
            try:
                known[one.topic] = one.bounds, newest_fates(client, one.bounds)
            except TopicproofError as error:
                known[one.topic] = one.bounds, str(error)
            if time.monotonic() > deadline:
                return


@st.cache_resource(ttl="10m", max_entries=4, show_spinner=False)
def _newest(
    bootstrap: str,  # noqa: ARG001 - part of the key
    _client: Mapping[str, str],
) -> dict[str, tuple[Bounds, Mapping[Fate, int] | str]]:
    return {}


@st.cache_data(ttl=30, max_entries=16, show_spinner="Asking for the topic’s settings…")
def topic_view(
    bootstrap: str, topic: str, _client: Mapping[str, str]
) -> tuple[tuple[Placement, ...], tuple[Setting, ...]]:
    return describe_topic(Address(bootstrap, _client), topic)


@st.cache_data(
    ttl=COORDINATION_AGE_MAX_S,
    max_entries=12,
    show_spinner="Asking for the groups’ committed offsets…",
)
def lags(
    bootstrap: str,
    topic: str,
    taken_at: datetime,
    _client: Mapping[str, str],
    _seen: Snapshot,
) -> tuple[GroupLag, ...]:
    opened = _coordination(bootstrap, topic, taken_at, _client, _seen).opened
    with connect(Address(bootstrap, _client)) as kafka:
        return group_lags(kafka, topic, _seen.bounds, _seen.ranges, opened)


@st.cache_data(
    ttl=COORDINATION_AGE_MAX_S,
    max_entries=12,
    show_spinner="Asking where share groups begin…",
)
def shares(
    bootstrap: str,
    topic: str,
    taken_at: datetime,
    _client: Mapping[str, str],
    _seen: Snapshot,
) -> tuple[ShareGroup, ...]:
    opened = _coordination(bootstrap, topic, taken_at, _client, _seen).opened
    with connect(Address(bootstrap, _client)) as kafka:
        return share_groups(kafka, topic, _seen.bounds, _seen.ranges, opened)


@st.cache_data(
    ttl=COORDINATION_AGE_MAX_S,
    max_entries=12,
    show_spinner="Asking for offsets that MirrorMaker translated…",
)
def mirrored(bootstrap: str, topic: str, _client: Mapping[str, str]) -> tuple[Checkpoint, ...]:
    found = checkpoints(Address(bootstrap, _client), [topic])
    return tuple(one for each in found for one in each.found)


def committed_instead(
    found: Settings, kafka: Services, seen: Snapshot, aborted: Record
) -> int | None:
    """Finds the offset where the same output of the same input was committed after all, if one of
    the next transactions holds it."""
    if aborted.lineage is None:
        return None
    for offset in same_place(seen.ranges, aborted.partition, aborted.offset, ATTEMPTS_FOLLOWED):
        for record in window(found, kafka, seen, aborted.partition, offset, 1):
            if record.delivered and record.lineage == aborted.lineage:
                return offset
    return None


def runs(found: Settings) -> list[Run]:
    return history(found).list(RUNS_SHOWN)


def run_of_url(found: Settings) -> Run | None:
    """Returns the run in the URL; None if the URL names none. Raises UsageError if there is no such
    run."""
    wanted = st.query_params.get("run")
    return history(found).get(wanted) if wanted else None


def report_text(found: Settings, run: Run, stage: str | None = None) -> str | None:
    """Reads the report of the run, or of one of its stages, from its folder; None if there is none
    yet."""
    path = (run.folder(found) if stage is None else stage_folder(run.folder(found), stage)) / REPORT
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"The report {path} cannot be read: {error.strerror}.") from error


@st.cache_data(max_entries=RUNS_SHOWN + 16, show_spinner=False)
def report(text: str) -> Report:
    return Report.from_json(text)


def shown_report(found: Settings, report: Report) -> Report:
    """Returns the report without the values in its examples, if parts of its topics are masked for
    this person; otherwise the same one."""
    topics = report.source.topic, report.sink.topic
    return without_values(report) if hidden(found, *topics) else report


def kept_report(found: Settings, run: Run) -> Report | None:
    """Returns the run's report; None if there is no readable one. Raises NotPermitted if this
    person's login has ended."""
    try:
        text = report_text(found, run)
        return None if text is None else shown_report(found, report(text))
    except NotPermitted:
        raise
    except (TopicproofError, ValueError, KeyError, TypeError):
        return None


def judged(runs: Sequence[Run], topic: str) -> Run | None:
    """Returns the first of these runs and checks that has a verdict on the topic, as its sink
    before its source."""
    known = [run for run in runs if run.verdict is not None]
    return next(
        (
            run
            for of in ("sink", "source")
            for run in known
            if getattr(run.facts, of) == topic and not run.facts.database
        ),
        None,
    )


def found_in(found: Settings, topic: str) -> Found | None:
    """Returns what the newest verdict on the topic found in it; None without a verdict. Shows why
    if its evidence cannot be read."""
    run = judged(runs(found), topic)
    report = None if run is None else kept_report(found, run)
    return None if run is None or report is None else found_of(found, run, report, topic)


def found_of(found: Settings, run: Run, report: Report, topic: str) -> Found | None:
    """Returns what the run's verdict found in the topic; nothing if parts of its topics are masked
    for this person, whose values it could tell. Shows why if its evidence cannot be read."""
    if hidden(found, report.source.topic, report.sink.topic):
        return None
    try:
        evidence = evidence_in(run.folder(found))[0]
        return _found_in(evidence_hash(evidence), topic, run.id, evidence, report)
    except (TopicproofError, OSError, ArrowInvalid) as error:
        st.warning(
            plain(f"No findings are drawn: the evidence of {run.id} cannot be read: {error}")
        )
        return None


@st.cache_data(max_entries=16, show_spinner=False)
def _found_in(digest: str | None, topic: str, run: str, _evidence: Path, _report: Report) -> Found:  # noqa: ARG001 - the digest is part of the key
    return findings_in(_evidence, _report, run, topic)


def standings(found: Settings, runs: Sequence[Run]) -> dict[str, str]:
    """Returns each run's sign-off standing in words."""
    signed: dict[str, list[Signoff]] = {}
    for one in signoffs(history(found)):
        signed.setdefault(one.run, []).append(one)
    today = datetime.now(UTC).date()
    return {
        run.id: (standing_text(signed.get(run.id, []), evidence_hash(run.folder(found)), today))
        for run in runs
    }


def zipped(history: History, run: Run, payloads: Payloads) -> bytes:
    """Packs the run's evidence and its sign-offs as a zip file. Raises EvidenceError,
    NotPermitted."""
    with TemporaryDirectory(prefix="topicproof-zip-") as place:
        packed = Path(place) / f"{run.id}.zip"
        export_zip(history, run, packed, payloads)
        return packed.read_bytes()
