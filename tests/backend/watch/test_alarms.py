"""What a watch makes of two looks: pure functions, without a broker."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.backend.watch.monitoring import listener
from topicproof.backend.address import Address
from topicproof.backend.commands.watch_commands import NoticeLines
from topicproof.backend.errors import SetupError
from topicproof.backend.kafka.browse.overview import Overview, TopicOverview
from topicproof.backend.kafka.coordination.worst_lag import StuckGroup
from topicproof.backend.watch import alarms as alarms_module, state_file, watcher as watcher_module
from topicproof.backend.watch.alarms import (
    NO_ALARMS,
    OF_GROUPS_MAX,
    OF_TOPIC_MAX,
    AlarmState,
    Change,
    Notice,
    after_look,
)
from topicproof.backend.watch.conditions import (
    NOTHING_BEFORE,
    Baseline,
    ClusterLook,
    Condition,
    Kind,
    conditions,
)
from topicproof.backend.watch.group_offsets import Place
from topicproof.backend.watch.metrics import WatchCollector, WatchFigures
from topicproof.backend.watch.state_file import StateFile, WatchState
from topicproof.backend.watch.watcher import Watcher, WatchOptions
from topicproof.backend.watch.webhook import Webhook, WebhookStyle, content, document
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import Bounds, PartitionBounds

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LASTING = Condition(Kind.HANGING, "producer 7", "It hangs.", ("orders",))
EVENT = Condition(Kind.VANISHED, "billing orders", "It is gone.", ("orders",), ("billing",))


def transaction(**changes: object) -> OpenTransaction:
    """A transaction that is under way since a minute and a half."""
    under_way = OpenTransaction(
        partition=0,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        start_offset=10,
        transactional_id="billing-0",
        state="Ongoing",
        age_ms=90_000,
        timeout_ms=600_000,
        records=5,
        withheld=5,
        hanging=False,
    )
    return replace(under_way, **changes)  # type: ignore[arg-type]


def look(
    *,
    bounds: tuple[int, int, int] = (0, 10, 15),
    opened: tuple[OpenTransaction, ...] = (),
    waiting: str | None = None,
    offsets: dict[Place, int] | None = None,
    note: str = "",
    topic_id: str = "id-1",
) -> ClusterLook:
    """A look at a cluster with the topic `orders` of one partition."""
    stuck = () if waiting is None else (StuckGroup(waiting, "orders", (0,)),)
    topic = TopicOverview(Bounds("orders", (PartitionBounds(0, *bounds),)), 0, opened, None, stuck)
    overview = Overview(NOW, "cluster", 1, (topic,), None, ())
    notes = (note,) if note else ()
    return ClusterLook(overview, offsets or {}, {"orders": topic_id}, notes)


def kinds(before: Baseline, now: ClusterLook) -> list[Kind]:
    current = conditions(before, now, patience_s=60, options=" --bootstrap b:9092")
    return [condition.kind for condition in current]


@pytest.mark.parametrize(
    ("opened", "waiting", "kind"),
    [
        pytest.param(transaction(), None, None, id="under-way"),
        pytest.param(transaction(age_ms=59_000), "billing", None, id="group-waits-briefly"),
        pytest.param(transaction(), "billing", Kind.WAITING, id="group-waits-for-long"),
        pytest.param(transaction(age_ms=700_000), None, Kind.OVERDUE, id="overdue"),
        pytest.param(transaction(hanging=True, timeout_ms=None), None, Kind.HANGING, id="hanging"),
        pytest.param(transaction(unseen=True, timeout_ms=None), "billing", None, id="unseen"),
    ],
)
def test_which_transactions_are_alarms(
    opened: OpenTransaction, waiting: str | None, kind: Kind | None
) -> None:
    """Healthy traffic has open transactions at every moment: none of these is an alarm."""
    current = look(opened=(opened,), waiting=waiting)
    assert kinds(NOTHING_BEFORE, current) == ([] if kind is None else [kind])


def test_the_alarm_names_who_waits_and_the_command() -> None:
    opened = transaction(hanging=True, timeout_ms=None)
    (condition,) = conditions(
        NOTHING_BEFORE,
        look(opened=(opened,), waiting="billing"),
        options=" --bootstrap b:9092",
    )
    assert "holds back 5 records on partition 0 of orders, and group billing." in condition.sentence
    assert condition.next_step.endswith("topicproof abort orders 0 10 --bootstrap b:9092")
    assert condition.offsets == (("orders", 0, 10),)


P0 = Place("billing", "orders", 0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(look(offsets={P0: 9}), look(offsets={P0: 10}), [], id="healthy"),
        pytest.param(look(offsets={P0: 9}), look(offsets={P0: 4}), [Kind.BACKWARDS], id="back"),
        pytest.param(look(offsets={P0: 9}), look(), [Kind.VANISHED], id="vanished"),
        pytest.param(look(offsets={P0: 9}), look(note="left out"), [], id="not-looked-at"),
        pytest.param(look(offsets={P0: 9}), look(offsets={P0: 16}), [Kind.BEYOND_END], id="beyond"),
        pytest.param(
            look(offsets={P0: 9}, bounds=(10, 10, 15)),
            look(offsets={P0: 9}, bounds=(10, 10, 15)),
            [Kind.BELOW_START],
            id="below-the-start",
        ),
        pytest.param(
            look(offsets={P0: 9}),
            look(offsets={P0: 9}, bounds=(10, 10, 15)),
            [],
            id="the-start-may-have-passed-it-within-this-look",
        ),
        pytest.param(
            look(offsets={P0: 9}), look(topic_id="id-2"), [Kind.REPLACED], id="made-again"
        ),
    ],
)
def test_what_groups_offsets_tell(
    before: ClusterLook, now: ClusterLook, expected: list[Kind]
) -> None:
    assert kinds(NOTHING_BEFORE.after(before), now) == expected


def test_offsets_that_could_not_be_read_are_not_gone() -> None:
    """No group is said to have lost its offset, and what moved meanwhile is told afterwards."""
    failed = look(note="Kafka does not answer")
    before = NOTHING_BEFORE.after(look(offsets={P0: 9}))
    assert kinds(before, failed) == []
    assert kinds(before.after(failed), look(offsets={P0: 4})) == [Kind.BACKWARDS]
    assert kinds(before.after(failed), look()) == [Kind.VANISHED]


@pytest.mark.parametrize(
    ("bounds", "kind"), [((10, 10, 15), Kind.BELOW_START), ((0, 5, 5), Kind.BEYOND_END)]
)
def test_a_topic_without_a_leader_is_no_all_clear(bounds: tuple[int, int, int], kind: Kind) -> None:
    """Story: a group's offset is outside of its log, and a partition of the topic has no leader for
    one look. The alarm lasts."""
    first = look(bounds=bounds, offsets={P0: 9})
    overview = replace(first.overview, topics=(), not_heard=("no leader",))
    looks = (first, first, replace(first, overview=overview), first)
    before, state, told = NOTHING_BEFORE, NO_ALARMS, []
    for now in looks:
        state, notices = after_look(
            state,
            conditions(before, now, options=""),
            NOW,
            clear_kinds=now.clear_kinds,
            left_out=now.left_out,
        )
        before = before.after(now)
        told += [(notice.change, notice.alarm.condition.kind) for notice in notices]
    assert told == [(Change.BEGAN, kind)]


def test_a_topic_that_was_gone_at_a_look_and_came_back_is_another_one() -> None:
    without = look()
    without = replace(without, overview=replace(without.overview, topics=()), topic_ids={})
    before = NOTHING_BEFORE.after(look()).after(without)
    assert kinds(before, look(topic_id="id-2")) == [Kind.REPLACED]
    assert kinds(before, look()) == []


def test_each_alarm_begins_and_ends_once() -> None:
    """Story: a transaction hangs over three looks. People hear of it once, and once that it is
    over. An event is told once and does not last."""
    state, began = after_look(NO_ALARMS, [LASTING, EVENT], NOW, clear_kinds=frozenset(Kind))
    assert [notice.change for notice in began] == [Change.BEGAN, Change.HAPPENED]
    later = NOW + timedelta(seconds=10)
    state, nothing = after_look(state, [LASTING], later, clear_kinds=frozenset(Kind))
    assert nothing == () and state.alarms[LASTING.key].since == NOW
    state, nothing = after_look(state, [], later, clear_kinds={Kind.WAITING})
    assert nothing == () and list(state.alarms) == [LASTING.key], "no all-clear without a look"
    state, ended = after_look(state, [], later, clear_kinds=frozenset(Kind))
    assert [notice.change for notice in ended] == [Change.ENDED] and not state.alarms
    assert ended[0].alarm.number == began[0].alarm.number
    # Those of a transaction come first.
    assert [notice.change for notice in state.waiting] == ["began", "ended", "happened"]


def groups_beyond(count: int, *, topics: int = 1, first: int = 0) -> list[Condition]:
    """Offsets beyond a log's end, of groups that somebody made up."""
    return [
        replace(
            LASTING,
            kind=Kind.BEYOND_END,
            holder=f"g{number} t{number % topics}",
            topics=(f"t{number % topics}",),
            groups=(f"g{number}",),
        )
        for number in range(first, first + count)
    ]


def test_made_up_groups_hide_no_transaction() -> None:
    """Story: somebody commits 10,000 offsets beyond a log's end. Then a transaction hangs. People
    are told of both, and the metrics count all. When the groups are gone, each alarm ends once."""
    all_kinds = frozenset(Kind)
    groups = groups_beyond(10_000)
    state, notices = after_look(NO_ALARMS, groups, NOW, clear_kinds=all_kinds)
    assert len(notices) == OF_TOPIC_MAX + 1
    *_, together = [notice.alarm.condition for notice in notices]
    assert together.count == 10_000 - OF_TOPIC_MAX and together.sentence.startswith("9,980 more")
    state, (hanging,) = after_look(state, [*groups, LASTING], NOW, clear_kinds=all_kinds)
    assert hanging.alarm.condition == LASTING and state.waiting[0] == hanging
    figures = WatchFigures(alarms=state)
    metrics = {metric.name: metric for metric in WatchCollector(figures).collect()}
    values = {
        sample.labels["kind"]: sample.value for sample in metrics["topicproof_watch_alarms"].samples
    }
    assert (values["offset_beyond_log_end"], values["hanging_transaction"]) == (10_000, 1)
    (folded,) = metrics["topicproof_watch_conditions_folded"].samples
    assert folded.value == 9_980
    # What lasts is not over because more has come, or because it does not lie in the first places.
    state, nothing = after_look(
        state,
        [*reversed(groups), *groups_beyond(5, first=10_000), LASTING],
        NOW,
        clear_kinds=all_kinds,
    )
    assert nothing == ()
    state, ended = after_look(state, [LASTING], NOW, clear_kinds=all_kinds)
    assert {notice.change for notice in ended} == {Change.ENDED}
    assert len(ended) == OF_TOPIC_MAX + 1 and list(state.alarms) == [LASTING.key]


def test_strangers_cannot_fill_the_state() -> None:
    """Story: each look sees other groups on 500 topics, and never all of them, so that nothing is
    over. The alarms have a limit, and those of the whole kind last while a topic has no leader."""
    state, kinds = NO_ALARMS, {Kind.HANGING}
    for first in range(0, 50_000, 10_000):
        made_up = groups_beyond(10_000, topics=500, first=first)
        state, _ = after_look(state, made_up, NOW, clear_kinds=kinds)
    assert len(state.alarms) == OF_GROUPS_MAX + 1
    state, _ = after_look(
        state, [], NOW, clear_kinds=frozenset(Kind), left_out={"another", "__consumer_offsets"}
    )
    (of_kind,) = state.alarms.values()
    assert of_kind.condition.count > 9_000 and of_kind.condition.holder == ""
    state, _ = after_look(
        state, [], NOW, clear_kinds=frozenset(Kind), left_out={"__consumer_offsets"}
    )
    assert not state.alarms


def test_the_least_important_notices_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a webhook is away. A transaction hangs, then groups move for days. The transaction's
    notice waits as the first one, and one notice counts those that are never sent."""
    monkeypatch.setattr(alarms_module, "NOTICES_MAX", 3)
    state, _ = after_look(NO_ALARMS, [LASTING], NOW, clear_kinds=frozenset(Kind))
    for number in range(5):
        moved = replace(EVENT, holder=f"g{number} orders")
        state, _ = after_look(state, [LASTING, moved], NOW, clear_kinds=frozenset(Kind))
    hanging, unsent, *events = state.waiting
    assert hanging.alarm.condition == LASTING and state.dropped == 3
    assert unsent.alarm.condition.sentence.startswith("3 notices of the watch were never sent")
    assert [event.alarm.condition.holder for event in events] == ["g3 orders", "g4 orders"]


def wide_look(groups: int, offset: int = 9) -> ClusterLook:
    """Groups with the longest names that there are, on 100 partitions of `orders` each."""
    names = [
        chr(0x1F600 + number % 80) + "\U0001f600" * 247 + str(number) for number in range(groups)
    ]
    return look(
        offsets={
            Place(name, "orders", partition): offset for name in names for partition in range(100)
        }
    )


def test_a_watch_reads_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: strangers call groups by 249 emoji. Each name is in the state once. If there is no
    room for all, the alarms are there, and people are told. A file that is too large is not called
    damaged."""
    file = StateFile(tmp_path / "state.json")
    names = ("\ud800", "a\nb\u2028", "")
    places = {Place(name, "orders", 3): 7 for name in names}
    baseline = NOTHING_BEFORE.after(wide_look(50))
    baseline = replace(baseline, offsets={**baseline.offsets, **places})
    alarms, _ = after_look(NO_ALARMS, [LASTING, EVENT], NOW, clear_kinds=frozenset(Kind))
    state = WatchState(alarms, baseline)
    assert file.write(state) == "" and file.read() == state
    assert file.path.stat().st_size < 200_000, "5,000 offsets of 50 long names"
    written = file.path.stat().st_ino
    assert file.write(state) == "" and file.path.stat().st_ino == written, "nothing has changed"
    monkeypatch.setattr(state_file, "BYTES_MAX", 50_000)
    with pytest.raises(SetupError, match=r"larger than 50,000 bytes") as refused:
        file.read()
    assert "damaged" not in str(refused.value)
    assert file.write(state).startswith("The state of this watch has room for")
    again = file.read()
    assert again.alarms == alarms and again.baseline.topic_ids == {"orders": "id-1"}
    assert 0 < len(again.baseline.offsets) < 5_000
    assert baseline.offsets.items() >= again.baseline.offsets.items()


def test_a_flood_of_notices_is_sent_once_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: many notices wait. Each look sends some of them, and writes the state once. The watch
    is stopped while it sends, and started again: the webhook gets each notice once."""
    monkeypatch.setattr(watcher_module, "DELIVERIES_MAX", 3)
    file = StateFile(tmp_path / "state.json")
    many = [replace(LASTING, holder=f"producer {number:03}") for number in range(20)]
    alarms, _ = after_look(NO_ALARMS, many, NOW, clear_kinds=frozenset(Kind))
    file.write(WatchState(alarms, NOTHING_BEFORE.after(look())))
    writes: list[int] = []

    class CountedFile(StateFile):
        def write(self, state: WatchState) -> str:
            writes.append(len(state.alarms.waiting))
            return super().write(state)

    with listener() as hook:

        def watcher() -> Watcher:
            started = Watcher(
                Address("unused:9092"),
                CountedFile(file.path),
                WatchOptions(every_s=600, webhook=Webhook(hook.address)),
                on_notice=lambda _notice, _cluster: None,
                on_trouble=lambda _sentence: None,
            )
            started.figures.take_in(look())
            return started

        stopped = watcher()
        stopped._deliver()
        assert len(hook.documents) == 3 and writes == [17]
        stopped.stop.set()
        stopped._deliver()
        assert len(hook.documents) == 4 and writes == [17, 16]
        # One that was killed has noted each notice after it was sent.
        watcher().file.note_sent((0, 1))
        last = watcher()
        last._deliver()
    numbers = [document["alarm"] for document in hook.documents]
    assert len(numbers) == len({*numbers}) == 7
    assert len(last.state.alarms.waiting) == 20 - 7 - 2


class Killed(BaseException):
    """The process ends there."""


@pytest.mark.parametrize("when", ["before-the-notice", "after-the-notice"])
def test_a_kill_between_the_state_and_a_notice_loses_none(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the watch writes what it has seen, and is killed before a line of `--json` is written,
    or before it has noted that it was. Each notice is one line after the restart. Another restart
    writes nothing."""
    opened = transaction(hanging=True, timeout_ms=None)
    offsets = {Place("readers", "orders", 0): 99}
    lines, state = tmp_path / "notices", tmp_path / "state.json"
    written: list[str] = []

    def watcher() -> Watcher:
        notices = NoticeLines(str(lines))

        def write(notice: Notice, cluster: str) -> None:
            if when == "before-the-notice" and written == ["hanging_transaction"]:
                written.append("killed")
                raise Killed
            notices.write(notice, cluster)
            written.append(notice.alarm.condition.kind)

        return Watcher(
            Address("unused:9092"),
            StateFile(state),
            WatchOptions(),
            on_notice=write,
            on_trouble=pytest.fail,
        )

    with monkeypatch.context() as patch:
        if when == "after-the-notice":
            patch.setattr(StateFile, "note_sent", lambda *_args, **_options: kill())
        with pytest.raises(Killed):
            watcher()._take_in(look(opened=(opened,), offsets=offsets))
    for _ in range(2):
        watcher()._take_in(look(opened=(opened,), offsets=offsets))
    kinds = [json.loads(line)["kind"] for line in lines.read_text().splitlines()]
    assert sorted(kinds) == ["hanging_transaction", "offset_beyond_log_end"], written
    # A line that was cut is left alone, and the next one begins behind it.
    lines.write_text('{"cut')
    watcher()._take_in(look())
    cut, *ended = lines.read_text().splitlines()
    assert cut == '{"cut' and "ended" in {json.loads(line)["change"] for line in ended}


def kill() -> None:
    raise Killed


def test_a_refused_notice_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a webhook answers 400 to one notice, and takes all others. The others are sent at
    once. The refused one is tried again, then given up, counted and told. A webhook that is away,
    or that does not know its caller, has refused nothing."""
    monkeypatch.setattr(watcher_module, "REFUSALS_MAX", 3)
    file = StateFile(tmp_path / "state.json")
    many = [replace(LASTING, holder=f"producer {number}") for number in range(4)]
    alarms, _ = after_look(NO_ALARMS, many, NOW, clear_kinds=frozenset(Kind))
    file.write(WatchState(alarms, NOTHING_BEFORE))
    troubles: list[str] = []
    with listener([200, 400, 200, 401, 400, 503, 400, 200]) as hook:
        watcher = Watcher(
            Address("unused:9092"),
            StateFile(file.path),
            WatchOptions(every_s=600, webhook=Webhook(hook.address)),
            on_notice=lambda _notice, _cluster: None,
            on_trouble=troubles.append,
        )
        watcher.figures.take_in(look())
        watcher._deliver()
        assert (len(hook.documents), len(watcher.state.alarms.waiting)) == (2, 2)
        # A kill here forgets neither what was sent nor what was refused.
        assert StateFile(file.path).read() == watcher.state
        watcher._deliver()
        assert len(watcher.state.alarms.waiting) == 2
        watcher._deliver()
        assert (len(hook.documents), len(watcher.state.alarms.waiting)) == (3, 0)
    assert watcher.state.alarms.dropped == 1
    assert troubles == [
        "The webhook does not take notices: it answered 401.",
        "The webhook refuses 1 notice, and is asked again at the next look.",
        "The webhook does not take notices: it answered 503.",
        "The webhook takes notices again.",
        "The webhook refuses no notice any more.",
        "1 notice that the webhook has refused at 3 looks will never be sent.",
    ]


def test_no_name_is_markup_in_a_chat() -> None:
    """Story: somebody calls a transactional id like a mention and a link of Slack, with a line of
    its own and half a surrogate pair. The chat shows the letters, and finds no address in them."""
    name = "<!channel> <http://x|click>\n*x* \x1b[31m \ud800 HTTPS://WWW.y"
    hostile = replace(LASTING, sentence=f"Group {name} hangs.")
    state, (notice,) = after_look(AlarmState({}), [hostile], NOW, clear_kinds=frozenset(Kind))
    slack = document(notice, "cluster", WebhookStyle.SLACK)
    assert slack["mrkdwn"] is False and "&lt;!channel&gt; &lt;http[:]//x|click&gt;" in slack["text"]
    assert "HTTPS[:]//WWW[.]y" in slack["text"]
    assert "\x1b" not in slack["text"] and "\n" not in slack["text"]
    (attachment,) = document(notice, "cluster", WebhookStyle.TEAMS)["attachments"]
    (block,) = attachment["content"]["body"]
    assert block["type"] == "RichTextBlock" and "\x1b" not in block["inlines"][0]["text"]
    plain = document(notice, "cluster", WebhookStyle.JSON)
    assert plain["what"] == hostile.sentence and plain["change"] == "began"
    assert plain["kind"] == "hanging_transaction" and plain["cluster"] == "cluster"
    assert state.waiting == (notice,)
    for style in WebhookStyle:
        assert json.loads(content(notice, "\ud800", style).decode())
