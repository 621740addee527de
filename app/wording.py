"""Every computed text: plural, joined, or chosen. One word per idea; a number never without what it
counts.

Texts for `st.markdown` are Streamlit Markdown. Anything from a topic or a person first passes
through `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from topicproof.backend.characters import visible
from topicproof.backend.history.run_state import Progress
from topicproof.backend.history.signoff import Standing
from topicproof.backend.history.store import ENDED, Run, State
from topicproof.backend.kafka.browse.causes import Cause
from topicproof.backend.kafka.browse.records import Record
from topicproof.backend.kafka.browse.search import Search, Stop
from topicproof.backend.kafka.coordination.lag import GroupLag
from topicproof.backend.kafka.coordination.reasons import DECLARED, FENCED, OPERATOR, TIMEOUT
from topicproof.backend.kafka.log.fates import FATES
from topicproof.backend.kafka.log.over_partitions import SPLIT
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, OPEN, UNEXPLAINED
from topicproof.validators.finding import Bounds, Check, Fate, Finding, Outcome, Witness
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.report import Report
from topicproof.validators.sentences import brief, first_of


@dataclass(frozen=True)
class Word:
    """How something is labelled: never by its colour alone."""

    word: str
    plural: str
    symbol: str
    colour: str
    """A colour of Streamlit's Markdown, defined in .streamlit/config.toml."""
    meaning: str = ""


FATE_WORDS: Mapping[Fate, Word] = {
    Fate.COMMITTED: Word("committed", "committed", "●", "blue", "both levels get it"),
    Fate.ABORTED: Word("aborted", "aborted", "✕", "orange", "only read_uncommitted gets it"),
    Fate.PENDING: Word(
        "pending", "pending", "◔", "yellow", "at or above the last stable offset: withheld for now"
    ),
    Fate.MARKER: Word(
        "marker", "markers", "■", "gray", "the end of a transaction; no consumer gets it"
    ),
    Fate.GONE: Word("gone", "gone", "○", "gray", "compacted or deleted; nothing is there any more"),
    Fate.UNEXPLAINED: Word("unexplained", "unexplained", "‽", "violet", "must be 0"),
}

HANGING = "HANGING"
"""The outcome of an open transaction of which no coordinator knows. The log alone calls it open."""

TRANSACTION_WORDS: Mapping[str, Word] = {
    COMMITTED: FATE_WORDS[Fate.COMMITTED],
    ABORTED: FATE_WORDS[Fate.ABORTED],
    OPEN: Word("open", "open", "◔", "yellow", "no marker yet: it holds back everything after it"),
    HANGING: Word("hanging", "hanging", "◕", "red", "no coordinator ends it: an operator must"),
    UNEXPLAINED: FATE_WORDS[Fate.UNEXPLAINED],
}

SPLIT_WORD = Word("split", "split", "◑", "red", "committed on one partition, aborted on another")

ABORT_WORDS: Mapping[str, str] = {
    DECLARED: "its producer aborted it",
    TIMEOUT: "timed out: its coordinator aborted it",
    FENCED: "fenced: another producer took its transactional id over",
    OPERATOR: "an operator aborted it",
}

OUTCOME_WORDS: Mapping[Outcome, Word] = {
    Outcome.HOLDS: Word("HOLDS", "HOLDS", ":material/check_circle:", "green"),
    Outcome.VIOLATED: Word("VIOLATED", "VIOLATED", ":material/cancel:", "red"),
    Outcome.UNKNOWN: Word("UNKNOWN", "UNKNOWN", ":material/help:", "yellow"),
}

IN_PART = Word("HOLDS in part", "HOLDS in part", ":material/pie_chart:", "orange")
"""A run that was stopped or failed before it reached all its inputs."""

OUTCOME_SYMBOLS: Mapping[str, str] = {
    Outcome.HOLDS: "✓",
    Outcome.VIOLATED: "✕",
    Outcome.UNKNOWN: "?",
}

KIND_TITLES: Mapping[str, str] = {one.NAME: one.TITLE for one in VALIDATORS}

WITNESS_WORDS: Mapping[Witness, str] = {
    Witness.READ_COMMITTED: "read_committed reading",
    Witness.READ_UNCOMMITTED: "read_uncommitted reading",
    Witness.RAW_LOG: "raw log",
    Witness.COORDINATOR: "transaction coordinator",
    Witness.JOURNAL: "journal of the run",
    Witness.SOURCE_LOG: "raw log of the source",
    Witness.READER: "concurrent reader",
}

WITNESS_BRIEFS: Mapping[Witness, str] = {
    Witness.READ_COMMITTED: "read_committed",
    Witness.READ_UNCOMMITTED: "read_uncommitted",
    Witness.RAW_LOG: "raw log",
    Witness.COORDINATOR: "coordinator",
    Witness.JOURNAL: "journal",
    Witness.SOURCE_LOG: "source’s log",
    Witness.READER: "reader",
}
"""The same for a narrow column."""

STANDING_WORDS: Mapping[Standing, Word] = {
    Standing.NONE: Word(
        "not signed", "not signed", ":material/draw:", "gray", "Nobody has decided on it yet."
    ),
    Standing.ACCEPTED: Word("accepted", "accepted", ":material/verified:", "green"),
    Standing.REJECTED: Word("rejected", "rejected", ":material/block:", "red"),
    Standing.EXPIRED: Word(
        word="waiver expired",
        plural="waiver expired",
        symbol=":material/event_busy:",
        colour="orange",
        meaning="It was accepted with a waiver that has expired.",
    ),
    Standing.CHANGED: Word(
        word="evidence changed",
        plural="evidence changed",
        symbol=":material/difference:",
        colour="orange",
        meaning="The evidence is no longer the one that was signed.",
    ),
    Standing.NOT_VOUCHED: Word(
        word="not vouched for",
        plural="not vouched for",
        symbol=":material/gpp_bad:",
        colour="red",
        meaning="No key that is trusted here vouches for what the history says of its sign-offs."
        " `topicproof keys chain` names each entry.",
    ),
    Standing.OTHER: Word(
        word="another verdict signed",
        plural="another verdict signed",
        symbol=":material/gpp_bad:",
        colour="red",
        meaning="It was accepted with another verdict than the history has.",
    ),
}

STAGES = (State.CREATED, State.FILLING, State.PROCESSING, State.JUDGING)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+\-!|$~:&^=])")


_LINE_BREAKS = re.compile(r"\r\n|[\n\r]")
_REPLACED = re.compile(
    r"(?i)(:(?=//)|www(?=\.)|@(?=[-\w]+\.)"  # links
    r"|(?<!\d):(?=[\w/+-]+:)|:(?!\d+:)(?=[\w/+-]+:))"  # icons, emoji, a logo; but no times
)
"""Inside of what the browser replaces in text that is parsed already, so whatever is escaped."""
_JOINER = "\u2060"
"""Has no width, and is in no address and in no name of an icon."""


def plain(text: str) -> str:
    """Escapes text for Markdown, so it cannot become a tag, link, image, formula or directive. In
    an address, and in the name of an icon, is a word joiner: nobody sees it, and no link or icon
    comes of it.

    Line breaks become spaces, and what else moves, reorders or hides text is spelled out as on the
    terminal: Markdown ends a paragraph at a carriage return, too.
    """
    one_line = visible(_LINE_BREAKS.sub(" ", text))
    return _SPECIAL.sub(r"\\\1", _REPLACED.sub(rf"\1{_JOINER}", one_line))


def code(text: str) -> str:
    """Formats a command or a name as code for Markdown, whatever backticks it has."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{visible(text)}{space}{fence}"


def number(value: int | float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def count(value: int, noun: str, plural: str | None = None) -> str:
    """Formats `1 record`, `2,000 records`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def moment(when: datetime | None) -> str:
    """Formats a time of the history, which is UTC without a zone, for a person."""
    return "–" if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"


def moment_of_ms(timestamp_ms: int | None) -> str:
    if timestamp_ms is None or timestamp_ms < 0:
        return "no timestamp"
    try:
        return (
            f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
        )
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms:,} ms, which is not a date"


def duration(seconds: float | None) -> str:
    """Formats a duration for a column or a figure."""
    return "–" if seconds is None else brief(seconds * 1000)


def fate_label(fate: Fate) -> str:
    return f"{FATE_WORDS[fate].symbol} {FATE_WORDS[fate].word}"


def balance(offsets: int, fates: Mapping[Fate, int]) -> str:
    """Formats `HW - start = committed + aborted + ...`, each term with its colour, symbol and
    word."""
    fates_shown = [fate for fate in FATES if fate is not Fate.UNEXPLAINED or fates[fate]]
    terms = [_term(fates[fate], FATE_WORDS[fate]) for fate in fates_shown]
    return f"{_offsets(offsets)} (HW − start) = {' + '.join(terms)}"


def _offsets(number: int) -> str:
    return f"**{number:,}** {'offset' if number == 1 else 'offsets'}"


def _term(value: int, word: Word) -> str:
    # With spaces that do not break: a symbol at the end of a line belongs to nothing.
    noun = word.word if value == 1 else word.plural
    return f":{word.colour}[{word.symbol}\u00a0**{value:,}**\u00a0{noun}]"


def report_balance(report: Report) -> str:
    """Formats the balance of the report, or the rows of a table; without the raw log, offsets
    without a record are not divided further."""
    if not report.of_topic:
        return f"**{report.sink.offsets:,}** {'row' if report.sink.offsets == 1 else 'rows'}"
    counts = report.fates
    pairs = [
        (Fate.COMMITTED, counts["committed"]),
        (Fate.ABORTED, counts["aborted"]),
        (Fate.PENDING, counts["pending"]),
        (Fate.MARKER, counts["markers"]),
        (Fate.GONE, counts["gone"]),
        (Fate.UNEXPLAINED, counts["unexplained"] or None),
    ]
    terms = [_term(value, FATE_WORDS[fate]) for fate, value in pairs if value is not None]
    if counts["no_record"] is not None:
        terms.append(f":gray[**{counts['no_record']:,}** without a record]")
    return f"{_offsets(report.sink.offsets)} (HW − start) = {' + '.join(terms)}"


def bin_sentence(width: int) -> str:
    if width == 1:
        return "Each cell is one offset: click one."
    return (
        f"Each cell is {width:,} offsets, divided by fate; a trace of aborted or pending always"
        " shows: click one."
    )


def run_state(run: Run) -> Word:
    """Describes the state of a run in a word."""
    if run.alive:
        word = "stopping" if run.stop_requested else str(run.state)
        return Word(word, word, ":material/sync:", "blue", "its process is running")
    if run.state not in ENDED:
        return Word(
            "killed",
            "killed",
            ":material/power_off:",
            "orange",
            "its process is gone; it can be resumed",
        )
    return {
        State.DONE: Word("done", "done", ":material/done_all:", "green"),
        State.STOPPED: Word(
            "stopped", "stopped", ":material/stop_circle:", "gray", "it can be resumed"
        ),
        State.FAILED: Word("failed", "failed", ":material/error:", "red"),
    }[run.state]


def badge(word: Word, text: str | None = None) -> str:
    return f":{word.colour}-badge[{word.symbol} {text or word.word}]"


def stages(run: Run) -> str:
    """Shows the stages of a run, with the current one."""
    if run.alive and run.state in STAGES:
        at = STAGES.index(run.state)
        names = [
            (
                f":green[✓ {stage}]"
                if n < at
                else f"**:blue[▶ {stage}]**"
                if n == at
                else f":gray[{stage}]"
            )
            for n, stage in enumerate(STAGES)
        ]
        return " → ".join([*names, ":gray[verdict]"])
    return badge(run_state(run)) + (f" {run_state(run).meaning}" if run_state(run).meaning else "")


def progress_text(progress: Progress, alive: bool) -> str:
    """Formats the line on the progress bar."""
    if not progress.stage:
        return "Waiting for the first look at its topics"
    total = progress.total
    parts = [
        (
            f"{progress.processed:,} of {count(total, 'input')} committed"
            if total is not None
            else (
                f"{count(progress.processed, 'input')} committed, {progress.filled:,} filled so far"
            )
        )
    ]
    if alive and progress.records_per_s:
        parts.append(f"{progress.records_per_s:,.0f} records/s")
    if alive and progress.seconds_left:
        parts.append(f"about {duration(progress.seconds_left)} left")
    return " · ".join(parts)


def progress_share(progress: Progress) -> float:
    """Returns the progress from 0 to 1. A run without an end shows its lag behind its source."""
    if not progress.stage:
        return 0.0
    goal = progress.total if progress.total is not None else progress.filled
    return min(1.0, max(0.0, progress.processed / goal)) if goal else 0.0


def faults_sentence(run: Run) -> str:
    """Describes which faults were planned, and how often they fired."""
    planned = _planned_faults(run)
    fired = run.progress.faults
    aborts = run.plan.get("abort_probability", 0)
    parts = []
    if planned:
        parts.append(f"{', '.join(planned)} fired {count(fired, 'time')}")
    if aborts:
        parts.append(f"aborts on purpose with probability {aborts:g}")
    return "; ".join(parts) if parts else "none planned"


def _planned_faults(run: Run) -> list[str]:
    by_hand = ["strikes by hand"] if run.plan.get("by_hand") else []
    return [*run.plan.get("faults", ()), *by_hand]


def plan_sentence(run: Run) -> str:
    """Describes the plan of a run."""
    plan = run.plan
    amount = (
        "until stopped" if plan.get("until_stopped") else count(plan.get("records", 0), "record")
    )
    return (
        f"{plan.get('scenario')} · {plan.get('guarantee')} · {amount} ·"
        f" {count(plan.get('partitions', 0), 'partition')} · {plan.get('per_transaction', 0):,} a"
        f" transaction · abort probability {plan.get('abort_probability', 0):g} ·"
        f" {', '.join(_planned_faults(run)) or 'no fault'} · seed {plan.get('seed')}"
    )


TRANSACTION_SHOWN = 80


def short_transaction(name: str | None) -> str:
    """Formats `…-0/17, attempt 1`: enough to tell the transactions of one run apart in a narrow
    column."""
    if name is None:
        return ""
    head, slash, tail = name.rpartition("/")
    short = f"…-{head.rpartition('-')[2]}/{tail}" if slash and "-" in head else name
    # Anybody may write this header. It is a cell of each record of its transaction.
    return visible(
        short if len(short) <= TRANSACTION_SHOWN else f"{short[: TRANSACTION_SHOWN - 1]}…"
    )


def transactions_balance(outcomes: Mapping[str, int], partitions: int) -> str:
    """Formats `12 transactions = 9 committed + 2 aborted + 1 open, on 3 partitions`, each term in
    its colour. `partitions`: on how many there are any."""
    total = sum(outcomes.values())
    words = {**TRANSACTION_WORDS, SPLIT: SPLIT_WORD}
    terms = [
        _term(outcomes.get(name, 0), word)
        for name, word in words.items()
        if name not in (HANGING, UNEXPLAINED, SPLIT) or outcomes.get(name)
    ]
    on = f", on {count(partitions, 'partition')}" if total else ""
    return (
        f"**{total:,}** {'transaction' if total == 1 else 'transactions'} = {' + '.join(terms)}{on}"
    )


def all_listed(transactions: int) -> str:
    """Says that all transactions that match are shown."""
    if transactions == 1:
        return "The one transaction that matches is drawn and listed"
    return f"All {count(transactions, 'transaction')} that match are drawn and listed"


def outcome_label(outcome: str) -> str:
    return f"{TRANSACTION_WORDS[outcome].symbol} {TRANSACTION_WORDS[outcome].word}"


def data_size(size: int) -> str:
    """Formats `812 B`, `1.2 MB`: in powers of 1,000."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,} B"


CONDITION_WORDS: Mapping[str, Word] = {
    "hanging": Word("hanging", "hanging", ":material/lock_clock:", "red"),
    "not known": Word("not known", "not known", ":material/visibility_off:", "orange"),
    "stuck": Word("stuck", "stuck", ":material/lock_clock:", "orange"),
    "overdue": Word("overdue", "overdue", ":material/timer_off:", "orange"),
    "open": Word("open", "open", ":material/hourglass_top:", "yellow"),
    "behind": Word("behind", "behind", ":material/hourglass_bottom:", "yellow"),
}
"""The condition of an open transaction, or of a group."""


def open_word(transaction: OpenTransaction) -> Word:
    """Describes the condition of an open transaction."""
    return CONDITION_WORDS[transaction.condition]


def without_badge(sentence: str, word: Word) -> str:
    """Returns a sentence without its first word, if the badge before it has that word."""
    start = f"{word.word.capitalize()}: "
    rest = sentence.removeprefix(start)
    return sentence if rest == sentence else rest[:1].upper() + rest[1:]


HELD_BACK_SHOWN = 3


def cause_sentence(cause: Cause) -> str:
    """Formats `**Open: fraud-check-7** holds back **50,003 records** on 3 partitions of
    **payments**, and group **billing**.`, in Markdown."""
    holder = plain(f"{cause.condition.capitalize()}: {cause.holder}")
    return f"**{holder}** {cause.effect_with(lambda text: f'**{plain(text)}**')}."


def stuck_sentence(lag: GroupLag) -> str:
    """Says what a group that can read nothing waits for, and on how many partitions."""
    stuck = [p for p in lag.partitions if p.stuck]
    holders = list(dict.fromkeys(p.stuck_behind for p in stuck if p.stuck_behind))
    who = first_of(holders, HELD_BACK_SHOWN) if holders else "An open transaction"
    partitions = first_of([str(p.partition) for p in stuck], HELD_BACK_SHOWN)
    verb = "hold" if len(holders) > 1 else "holds"
    return (
        f"{lag.group} has read all it can. {who} {verb} back"
        f" {count(sum(p.withheld for p in stuck), 'record')} on"
        f" partition{'' if len(stuck) == 1 else 's'} {partitions}."
    )


def search_sentence(results: Mapping[int, Search], bounds: Bounds) -> str:
    """Describes how far a search came, and why it ended there."""
    rows = count(sum(len(result.rows) for result in results.values()), "record")
    searched = f"{sum(result.searched for result in results.values()):,}"
    edges = {p.partition: {p.start, p.hw} for p in bounds.partitions}
    if len(results) == 1 < len(edges) or len(edges) == 1:
        ((partition, result),) = results.items()
        limits = {
            Stop.END: "that is the whole partition"
            if {result.first, result.end} == edges[partition]
            else "that is the end of the partition"
            if result.end in edges[partition]
            else "that is all until the given time",
            Stop.FOUND: f"it stopped because {rows} were found",
            Stop.OFFSETS: "it stopped at the limit of offsets for one search",
            Stop.BYTES: "it stopped at the limit of bytes for one search",
            Stop.TIME: "it stopped because its time was up",
        }
        direction = "down" if result.end < result.first else "on"
        return (
            f"**{rows}** in {searched} of {count(result.offsets, 'offset')} of partition"
            f" {partition} from {result.first:,} {direction}; {limits[result.stop]}."
        )
    ended = sum(result.stop is Stop.END for result in results.values())
    within = all(result.end in edges[partition] for partition, result in results.items())
    goal = "its end" if within else "the given time"
    left = (
        f"every partition was searched to {goal}"
        if ended == len(edges)
        else f"{ended} of {len(edges)} partitions were searched to {goal.replace('its', 'their')}"
    )
    return f"**{rows}** in {searched} offsets; {left}."


def not_here(record: Record) -> str:
    """Formats a short reason why read_committed gets nothing; the full sentence is `record.why`."""
    if record.marker:
        return "— a marker, never delivered"
    return {
        Fate.ABORTED: "— not delivered: aborted",
        Fate.PENDING: "— withheld: still pending",
        Fate.GONE: "— nothing here any more",
    }.get(record.fate, f"— {record.why}")


def report_witnesses(report: Report) -> set[Witness]:
    """Lists the witnesses that a report used: always both readings, the raw log if the balance
    counts markers, others according to the checks."""
    both = {Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED}
    raw_log = (
        {Witness.RAW_LOG}
        if any(partition.markers is not None for partition in report.balance)
        else set()
    )
    return both | raw_log | {witness for check in report.checked for witness in check.witnesses}


def denominator(check: Check | None) -> str:
    return "" if check is None else f" of {check.records:,} {check.unit}"


def finding_title(finding: Finding, check: Check | None) -> str:
    """Formats the title of a verdict section: outcome, kind, count and denominator."""
    explained = finding.count - finding.primary
    if check is None:
        result = "not judged"
    elif finding.primary and explained and finding.explained_by is not None:
        # The sentence beside it counts what no other kind explains.
        of = kind_title(finding.explained_by)
        result = f"{finding.primary:,}{denominator(check)}, {explained:,} more explained by {of}"
    else:
        result = f"{finding.count:,}{denominator(check)}"
    title = kind_label(finding.kind)
    return f"{badge(OUTCOME_WORDS[finding.outcome])} **{title}** · {plain(result)}"


def kind_title(kind: str) -> str:
    """Returns the title of a kind of finding as text, for tables and charts. A report may name
    kinds that the catalogue does not have: of another version, or anybody's."""
    return KIND_TITLES.get(kind) or visible(kind.replace("_", " ").capitalize())


def kind_label(kind: str) -> str:
    """Returns the title of a kind of finding, for Markdown."""
    return plain(kind_title(kind))


def run_word(run: Run) -> Word | None:
    """Returns the word for a run's verdict; None without one."""
    if run.verdict is None:
        return None
    ended_early = run.state in (State.FAILED, State.STOPPED)
    if run.verdict == Outcome.HOLDS and ended_early:
        return IN_PART
    return OUTCOME_WORDS[Outcome(run.verdict)]


def report_word(report: Report) -> Word:
    """Returns the word for a report's verdict."""
    if report.verdict is Outcome.HOLDS and report.covered_share is not None:
        return IN_PART
    return OUTCOME_WORDS[report.verdict]


def verdict_short(run: Run) -> str:
    word = run_word(run)
    if word is None:
        return ""
    symbol = "◑" if word is IN_PART else OUTCOME_SYMBOLS.get(run.verdict or "", "")
    return f"{symbol} {word.word}".strip()


def size(value: bytes | None) -> str:
    return "null" if value is None else count(len(value), "byte")


EXPOSED_WORDS = {False: "refused", True: "can reach the next transaction", None: ""}
"""What happens to a producer's late requests, by `is_exposed`."""
EXPOSED = (
    "A late request can reach the next transaction of a client that keeps its epoch (KAFKA-17754):"
    " librdkafka, or Java before Kafka 4. It does not harm a client that takes new epochs itself,"
    " as the sink of this project does."
)
