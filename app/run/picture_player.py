"""The picture of a run on a page: played live while the run goes on, by buttons afterwards.

The browser draws it (picture.js). Nothing is built or fetched: the code is part of the page,
as the policy of doors.py demands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import streamlit as st

from topicproof.app import wording
from topicproof.app.charts.layout import FATE_COLOURS
from topicproof.app.charts.picture import PAUSE_MS, TRANSACTIONS_MAX
from topicproof.app.run.picture_facts import OFFSETS_MAX, drawable, picture_of
from topicproof.app.run.run_progress import asked_at, asked_of
from topicproof.backend.characters import visible
from topicproof.backend.errors import TopicError, TopicproofError
from topicproof.backend.history.store import Run
from topicproof.backend.settings import Settings

POLL_S = 1.0
"""How often the picture of a live run gets new data. Between them it is played."""
HTML = """
<figure class="picture">
  <p class="heading"></p>
  <p class="says"></p>
  <canvas role="img"></canvas>
  <p class="verdict"></p>
  <div class="actions" role="group" aria-label="What you can do to the run"></div>
  <p class="keys">
    <kbd>Space</kbd> plays and pauses
    <kbd>←</kbd> <kbd>→</kbd> step
    <kbd>N</kbd> next moment
    <span class="acts" hidden><kbd>1</kbd>…<kbd>9</kbd> the buttons above</span>
    <kbd>Esc</kbd> leaves
  </p>
  <div class="controls" role="group" aria-label="Playback of the run">
    <button type="button" data-do="play">Play</button>
    <button type="button" data-do="back">‹ Step</button>
    <button type="button" data-do="on">Step ›</button>
    <button type="button" data-do="moment" hidden>Next moment</button>
    <button type="button" data-do="live" hidden>Live</button>
    <span class="mode"></span>
    <input type="range" min="0" step="1" aria-label="Moment of the run">
    <select aria-label="Speed"></select>
    <output class="time"></output>
    <button type="button" data-do="whole">Full screen</button>
  </div>
  <ul class="legend">
    <li class="open"><i></i>open: no marker yet</li>
    <li class="committed"><i></i>committed</li>
    <li class="waits"><i></i>committed, waits behind the gate</li>
    <li class="aborted"><i>✕</i>aborted: the word below says why</li>
    <li class="twice" hidden><i>2×</i>the same output again</li>
    <li class="gate"><i></i>gate: the last stable offset (LSO)</li>
  </ul>
  <p class="left-out"></p>
  <details>
    <summary>The picture in words</summary>
    <p class="summary"></p>
    <ol tabindex="0" aria-label="Events of the run"></ol>
  </details>
</figure>
"""
_FOLDER = Path(__file__).parent
_play = st.components.v2.component(
    "topicproof_picture",
    html=HTML,
    css=(_FOLDER / "picture.css").read_text(encoding="utf-8"),
    js=(_FOLDER / "picture.js").read_text(encoding="utf-8"),
)


def show_picture(
    settings: Settings,
    run: Run,
    *,
    small: bool = False,
    plays: bool = False,
    heading: str = "",
    actions: Mapping[str, Callable[[], None]] = MappingProxyType({}),
) -> None:
    """Shows the run's picture; says why if there is none. `small`: with lower rows; `plays`: a run
    that has ended is played once at first. On a whole screen it has a `heading`, the verdict, and
    a button for each of `actions`, by label."""
    names = drawable(run)
    if names is None:
        if why := _not_drawn(run):
            st.caption(wording.plain(why))
        return
    try:
        data = picture_of(settings, run, names)
    except TopicError:
        st.caption("This cluster has no topics of this run, so its picture cannot be drawn.")
        return
    except TopicproofError as error:
        st.caption(f"The picture cannot be drawn now: {wording.plain(str(error))}")
        return
    sinks = [f"the sinks {', '.join(names.sinks[1:])}"] if names.sinks[1:] else []
    if len(run.facts.stages) > 1:
        sinks.append(f"all stages but {names.stage}")
    word = wording.run_word(run)
    extra = {
        "title": visible(f"The run {run.id}, which writes to {names.sink}"),
        "heading": visible(heading),
        "verdict": visible(f"{word.word}: {run.why or ''}") if word and not run.alive else "",
        "live": run.alive,
        "interactive": bool(run.plan.get("by_hand")),
        "small": small,
        "plays": plays,
        "actions": [visible(label) for label in actions],
        "asked": asked_of(run),
        "asked_at": asked_at(run),
        "colours": {str(fate): colour for fate, colour in FATE_COLOURS.items()},
        "left_out": [*data["left_out"], *sinks],
    }
    result = _play(key=f"picture {run.id}", data=data | extra, on_action_change=_noted)
    # The browser chooses one of the labels that were offered, and nothing else.
    for label, act in actions.items():
        if result.action == visible(label):
            act()


def _noted() -> None:
    """A press reruns the page; `show_picture` acts on it."""


def explain_picture() -> None:
    """Says what the picture is made of."""
    st.caption(
        "Drawn from the raw log of the sink and the journal of the run, at the times that their"
        f" writers set; pauses of more than {PAUSE_MS / 1000:g} s are shortened. A box holds the"
        " records of one transaction in one partition; wider boxes hold more. It shows at most the"
        f" newest {TRANSACTIONS_MAX:,} transactions and all open ones. The readers show what"
        " consumers at each level could have received."
    )


def _not_drawn(run: Run) -> str | None:
    if run.kind != "run":
        return None
    if run.facts.initial_offsets is None or not run.facts.stages:
        return "The picture begins when the run has its topics." if run.alive else None
    if run.facts.stages[-1].database:
        return None
    return (
        f"The sink has more than {OFFSETS_MAX:,} offsets. Its picture is not drawn, because reading"
        " the log again and again takes time from the run."
    )
