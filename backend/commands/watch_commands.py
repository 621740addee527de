"""Watch a cluster all day: what begins to be wrong, what ends, what happens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from topicproof.backend.characters import visible_json
from topicproof.backend.commands.shared_options import EMBEDDED, Json, Target, kafka_settings
from topicproof.backend.commands.terminal import (
    Style,
    Styled,
    end_of_file,
    out,
    say,
    stopping,
    write_file,
)
from topicproof.backend.contracts.contract import make_contract, parse_fields, read_fields
from topicproof.backend.errors import UsageError
from topicproof.backend.history.kept_contracts import find
from topicproof.backend.history.store import History
from topicproof.backend.services.keeper import Services, are_running, require_topics, services
from topicproof.backend.settings import Settings
from topicproof.backend.watch.alarms import Change, Notice
from topicproof.backend.watch.cluster_look import cluster_id
from topicproof.backend.watch.conditions import PATIENCE_S
from topicproof.backend.watch.pair_store import pair_store
from topicproof.backend.watch.state_file import state_file
from topicproof.backend.watch.waivers import waived_of
from topicproof.backend.watch.watch_list import watched_of_list
from topicproof.backend.watch.watchable import WatchedContract, watched_contracts
from topicproof.backend.watch.watcher import EVERY_S, Watcher, WatchOptions, served_metrics
from topicproof.backend.watch.webhook import WebhookStyle, read_webhook

EVERY_S_MIN = 1.0
END_BYTES = 16_000_000
"""Of the file of `--json`, in which notices are looked for that a killed watch wrote last."""
STYLES: dict[Change, Style] = {
    Change.BEGAN: "red",
    Change.ENDED: "green",
    Change.HAPPENED: "yellow",
}


def watch(
    contracts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Contracts that are judged as their topics grow: YAML files, or names of kept"
            " ones.",
            metavar="[CONTRACT]...",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        float, typer.Option(help="Seconds from one look to the next.", metavar="S")
    ] = EVERY_S,
    patience: Annotated[
        float,
        typer.Option(
            help="From which age an open transaction is an alarm if a group waits for it, in"
            " seconds.",
            metavar="S",
        ),
    ] = PATIENCE_S,
    webhook: Annotated[
        Path | None,
        typer.Option(
            help="Also send each notice to the http or https address in FILE, which only you can"
            " read.",
            metavar="FILE",
        ),
    ] = None,
    webhook_style: Annotated[
        WebhookStyle, typer.Option(help="What the webhook understands.")
    ] = WebhookStyle.JSON,
    metrics: Annotated[
        int | None,
        typer.Option(
            help="Serve metrics for Prometheus at this port of this machine, and /readyz.",
            metavar="PORT",
        ),
    ] = None,
    otel: Annotated[
        bool,
        typer.Option(
            "--otel",
            help="Send the same metrics to an OpenTelemetry collector (OTLP over HTTP), as"
            " OpenTelemetry's own variables say (OTEL_EXPORTER_OTLP_ENDPOINT).",
        ),
    ] = False,
    offsets_per_second: Annotated[
        int | None,
        typer.Option(
            "--max-offsets-per-second",
            help="Read at most so many offsets of the contracts' topics, on average.",
            metavar="N",
            min=1,
        ),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget what an earlier watch of this cluster saw.")
    ] = False,
    listed: Annotated[
        bool,
        typer.Option(
            "--listed",
            help="End when no contract is on the list of the dashboard any more. How the dashboard"
            " starts a watch.",
        ),
    ] = False,
    target: Target = EMBEDDED,
    json_: Json = None,
) -> None:
    """Tell what begins to be wrong with transactions, groups and contracts, and when it ends, until
    Ctrl-C.

    Changes nothing, and reads each record of a contract's topics once. A restart continues: what
    was told is not told again. `--json` writes each notice as one line. Contracts of this cluster
    that the dashboard's *Watch this* has listed are judged, too.

    Example: `topicproof watch orders.yaml --bootstrap broker:9092 --every 10 --metrics 9464`
    """
    if every < EVERY_S_MIN or patience < 0:
        raise UsageError(
            f"--every is at least {EVERY_S_MIN:.0f} second, and --patience is not negative."
        )
    settings = kafka_settings(target)
    watched = tuple(each for name in contracts or () for each in _watched(settings, name))
    names = [each.name for each in watched]
    if len(set(names)) < len(names):
        raise UsageError("Two contracts have the same name. Rename one of the files.")
    if len({each.state_name for each in watched}) < len(watched):
        raise UsageError("Two contracts match the same topics in the same way. Watch one of them.")
    require_topics(settings)
    options = WatchOptions(
        every_s=every,
        patience_s=patience,
        webhook=None if webhook is None else read_webhook(webhook, webhook_style),
        cluster_options=settings.cluster_options,
        contracts=watched,
        offsets_per_second=offsets_per_second,
        cluster=settings.cluster or "",
        bootstrap=settings.bootstrap or "",
    )
    tell: Callable[[Notice, str], None] = _print_notice
    if json_ is not None:
        tell = NoticeLines(json_).write
    elif listed:
        # Its output is kept, and notices have no end.
        tell = _tell_nobody
    with (
        stopping("look") as stop,
        _kafka(settings, is_lasting=not listed) as running,
        state_file(settings, cluster := cluster_id(running.address)) as file,
    ):
        if anew:
            file.forget()
        history = cache(partial(History, settings))
        with (
            pair_store(file.pairs) as store,
            served_metrics(
                watcher := Watcher(
                    running.address,
                    file,
                    options,
                    on_notice=tell,
                    on_trouble=say,
                    store=store,
                    read_contracts=partial(watched_of_list, settings, cluster, watched),
                    read_waivers=lambda contracts: waived_of(history(), contracts),
                ),
                metrics,
            ),
            _sent_metrics(watcher, is_wanted=otel),
        ):
            say(f"watching {running.bootstrap} every {every:g} s; Ctrl-C ends it")
            for alarm in watcher.state.alarms.alarms.values():
                say(f"since {alarm.since:%Y-%m-%d %H:%M} UTC: {alarm.condition.sentence}")
            watcher.watch(stop, partial(_is_over, settings, watcher) if listed else lambda: False)


@contextmanager
def _kafka(settings: Settings, *, is_lasting: bool) -> Iterator[Services]:
    """Provide Kafka. `is_lasting`: an embedded one runs until the block ends. A watch that the
    dashboard has started does not keep it running: Ctrl-C ends what `topicproof up` has started."""
    with ExitStack() as stack:
        running = stack.enter_context(services(settings, spark=False, say=say))
        if not is_lasting:
            stack.close()
        yield running


def _sent_metrics(watcher: Watcher, *, is_wanted: bool) -> AbstractContextManager[None]:
    """Raises UsageError without the exporter."""
    if not is_wanted:
        return nullcontext()
    try:
        from topicproof.backend.watch.otel import sent_metrics
    except ImportError as error:
        raise UsageError(
            "--otel needs OpenTelemetry's exporter: pip install 'topicproof[otel]'."
        ) from error
    return sent_metrics(watcher.figures, say)


def _is_over(settings: Settings, watcher: Watcher) -> bool:
    """Whether a watch that the dashboard has started has nothing to do any more. An embedded Kafka
    that was started again has other ports."""
    is_gone = settings.bootstrap is None and not (are_running(settings) and watcher.is_looking)
    return not (watcher.watched or watcher.refused) or is_gone


def _watched(settings: Settings, name: str) -> tuple[WatchedContract, ...]:
    """Return a contract for each sink of a file or of a kept contract. Raises ContractError naming
    what cannot be watched, UsageError."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return watched_contracts(path.stem, make_contract(read_fields(path)))
    kept_contract = find(History(settings), name)
    return watched_contracts(
        kept_contract.name, make_contract(parse_fields(kept_contract.text, kept_contract.label))
    )


def _print_notice(notice: Notice, _cluster: str) -> None:
    condition = notice.alarm.condition
    out.line(
        f"{notice.at:%H:%M:%S} ",
        Styled(notice.change.value, STYLES[notice.change]),
        f" {condition.sentence}",
    )
    if condition.next_step and notice.change is not Change.ENDED:
        out.line(f"  Next: {condition.next_step}")


def _tell_nobody(_notice: Notice, _cluster: str) -> None:
    pass


class NoticeLines:
    """Writes notices as lines of JSON to a file, or for `-` to the terminal.

    A watch that was killed hands on again what it may have written already. Each notice has a
    number and a time, so a line that the file's end holds is that notice, and is not written twice.
    """

    def __init__(self, json_: str) -> None:
        self.path = None if json_ == "-" else Path(json_)
        self.lines: set[bytes] = set()
        self.is_cut = False
        if self.path is not None:
            content = end_of_file(self.path, END_BYTES)
            self.is_cut = bool(content) and not content.endswith(b"\n")
            self.lines = {hashlib.sha256(line).digest() for line in content.split(b"\n")}

    def write(self, notice: Notice, cluster: str) -> None:
        """Write a notice as one line. Raises EvidenceError."""
        line = visible_json(json.dumps(notice.to_json(cluster), ensure_ascii=False))
        if self.path is None:
            out.json(line)
        elif hashlib.sha256(line.encode()).digest() not in self.lines:
            # Whoever names the file decides how long it may be: it never begins again.
            write_file(self.path, "\n" * self.is_cut + f"{line}\n", append=True)
            self.is_cut = False
