"""The guided demos in a real Chromium: four run by themselves to their end, one is struck by hand,
one is a newcomer's whole path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import at_tab, settled
from topicproof.app.run.stories import STORIES, Story
from topicproof.backend.address import Address
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.settings import Settings
from topicproof.validators.lineage.compact import COMPACT_HEADER, format_compact
from topicproof.validators.lineage.headers import Lineage

STORY_MS = 600_000
ABORTS = next(story for story in STORIES if story.name == "aborts")
OTHERS = [story for story in STORIES if story is not ABORTS]


MOMENTS_OF_CLEAN = (
    "3 workers start, one for each partition of the source.",
    "A transaction is open: only read_uncommitted gets its records so far.",
    "A COMMIT marker lands: read_committed gets the whole transaction at once.",
    "At the end both readers got the same 9,000 records.",
)


def start(window: Page, story: Story) -> None:
    window.get_by_role("button", name=story.title).click()
    window.wait_for_url(f"**/demos?story={story.name}&runs=*")
    expect(window.get_by_role("heading", name=story.title)).to_be_visible()


def to_its_end(window: Page, story: Story) -> None:
    """Until the last step is told; by then the earlier ones stand above it."""
    expect(window.get_by_text("What there is to see")).to_be_visible(timeout=STORY_MS)
    for text in (story.processing, story.ended):
        expect(window.get_by_text(text[:60])).to_be_visible()
    settled(window)


def by_keyboard(picture: Locator) -> None:
    """Plays a picture that has ended, without a mouse: to its beginning, a step, playing, its end.
    Then blue boxes of committed records are on the canvas, and nothing was refused or fetched."""
    said, moment = picture.locator(".says"), picture.get_by_label("Moment of the run")
    # It was replayed, or is being replayed, by itself.
    expect(picture.get_by_label("Speed")).to_have_value("story")
    play = picture.get_by_role("button", name="Play")
    moment.press("Home")
    expect(said).to_have_text("Nothing has happened yet.")
    picture.get_by_role("button", name="Step ›").press("Enter")
    expect(said).to_contain_text("A worker takes over")
    for says in MOMENTS_OF_CLEAN:
        picture.get_by_role("button", name="Next moment").press("Enter")
        expect(said).to_have_text(says)
    moment.press("Home")
    play.press("Enter")
    expect(picture.get_by_role("button", name="Pause")).to_be_visible()
    expect(picture.get_by_text("Slow replay")).to_be_visible()
    expect(said).to_have_text(MOMENTS_OF_CLEAN[0])
    moment.press("End")
    expect(play).to_be_visible()
    expect(said).to_contain_text("are committed.")
    # On a phone its sentence is smaller.
    expect(said).to_have_css("font-size", "20.8px")
    size = picture.page.viewport_size
    assert size is not None
    picture.page.set_viewport_size({"width": 390, "height": 800})
    expect(said).to_have_css("font-size", "17.6px")
    picture.page.set_viewport_size(size)
    picture.get_by_text("The picture in words").press("Enter")
    expect(
        picture.get_by_role("listitem").filter(has_text="COMMIT markers land").first
    ).to_be_visible()
    canvas = picture.get_by_role("img", name="Nothing is held back")
    assert canvas.evaluate(
        """canvas => {
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            let blue = 0;
            for (let at = 0; at < data.length; at += 4)
                blue += data[at] === 0 && data[at + 1] === 114 && data[at + 2] === 178;
            return blue;
        }"""
    )


def by_hand(window: Page) -> None:
    """Kills a worker of the live run by a key, where the picture fills the screen and says which
    keys there are, is answered at once, sees it in the picture, and ends the run when the worker's
    successor has taken over. The page's own buttons stay in their place."""
    picture = window.locator(".picture")
    picture.get_by_text("The picture in words").click(timeout=STORY_MS)
    events = picture.get_by_role("listitem")
    expect(events.filter(has_text="COMMIT markers land").first).to_be_visible(timeout=STORY_MS)
    kill = window.get_by_role("button", name="Kill this worker now")
    before = kill.bounding_box()
    picture.get_by_role("button", name="Full screen").click()
    expect(picture.get_by_text("Break it yourself. Can you make exactly-once")).to_be_visible()
    expect(picture.get_by_text("plays and pauses")).to_be_visible()
    window.keyboard.press("Space")
    expect(picture.get_by_role("button", name="Play", exact=True)).to_be_visible()
    expect(picture.get_by_role("button", name="Kill p0")).to_be_visible()
    window.keyboard.press("1")
    expect(picture.locator(".says")).to_have_text("Kill p0: asked. It takes effect in a moment.")
    killed = events.filter(has_text="Somebody kills the worker of p0 with SIGKILL")
    expect(killed).to_be_visible(timeout=STORY_MS)
    picture.get_by_role("button", name="Exit full screen").click()
    taken_over = events.filter(has_text="A worker takes over p0")
    expect(taken_over.nth(1)).to_be_visible(timeout=STORY_MS)
    assert before is not None and kill.bounding_box() == before
    window.get_by_role("button", name="Finish and judge").click()
    expect(window.get_by_text("The run processes what is there")).to_be_visible()


@pytest.mark.parametrize("story", OTHERS, ids=lambda story: str(story.name))
def test_a_story_runs_by_itself(story: Story, address: str, window: Page, artifacts: Path) -> None:
    """Story: one click, and then only looking on; the open transaction is ended by another, and one
    story asks for strikes. Every run of it ends with a verdict that holds, and with links. The harm
    that at-least-once allows is one of them, and leads to the record."""
    if story is STORIES[0]:
        # One click on the start page.
        window.goto(address)
        window.get_by_role("button", name="Watch a demo").click()
        window.wait_for_url(f"**/demos?story={story.name}&runs=*")
    else:
        window.goto(f"{address}/demos")
        start(window, story)
    if story.name == "hanging":
        window.get_by_role("button", name="End the transaction").click(timeout=STORY_MS)
    if story.name == "by-hand":
        by_hand(window)
    to_its_end(window, story)
    window.screenshot(path=artifacts / f"story-{story.name}.png", full_page=True)
    assert window.get_by_text("HOLDS", exact=True).count() == len(story.parts)
    pictures = window.locator(".picture")
    expect(pictures).to_have_count(len(story.parts))
    if story is STORIES[0]:
        by_keyboard(pictures)
    if story.name == "crash":
        at_least_once, exactly_once = pictures.all()
        expect(at_least_once.get_by_role("img", name="repeat earlier ones (2×)")).to_be_visible()
        expect(exactly_once.get_by_role("img", name="Crosses: 3 killed.")).to_be_visible()
        window.get_by_role("link", name="A record that came twice").click()
        at_tab(window, "Compare")
        expect(window.get_by_text("Delivered: it is in no transaction")).to_be_visible()
    if story.name == "by-hand":
        window.get_by_role("link", name="The verdict, and where to sign it").click()
        expect(window.get_by_text("This run was struck by hand: 1. the worker of")).to_be_visible()


def test_the_path_of_a_newcomer(
    address: str, window: Page, settings: Settings, bootstrap: str, artifacts: Path
) -> None:
    """Story: somebody opens the dashboard who knows nothing of it, and types no address: a demo,
    one of its aborted records, that record's transaction, the verdict, a signature. Then the same
    pipeline is watched."""
    window.goto(address)
    window.get_by_role("link", name="Lab").click()
    start(window, ABORTS)
    to_its_end(window, ABORTS)

    window.get_by_role("link", name="An aborted record, seen at both levels").click()
    at_tab(window, "Compare")
    expect(
        window.get_by_text("Not delivered: its transaction was aborted (marker at")
    ).to_be_visible()
    settled(window)

    window.get_by_role("link", name="Show the transaction").click()
    at_tab(window, "Transactions")
    expect(window.get_by_text("Its producer aborted it.")).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "newcomer-transaction.png", full_page=True)

    window.get_by_role("link", name=re.compile(r"Verdict$")).last.click()
    at_tab(window, "Verdict")
    expect(
        window.get_by_text("9,000 of 9,000 inputs committed exactly once, in order")
    ).to_be_visible()
    expect(window.get_by_text("not signed")).to_be_visible()

    window.get_by_role("textbox", name="Your name").fill("Grace Hopper")
    window.get_by_role("button", name="Sign", exact=True).click()
    # Before that, the chain of checks tests itself on Spark.
    expect(window.get_by_text("Grace Hopper (unauthenticated) accepted HOLDS")).to_be_visible(
        timeout=STORY_MS
    )
    settled(window)
    window.screenshot(path=artifacts / "newcomer-signed.png", full_page=True)

    watched_from_home(address, window, settings, bootstrap, artifacts)


def watched_from_home(
    address: str, window: Page, settings: Settings, bootstrap: str, artifacts: Path
) -> None:
    """From the home page, three clicks watch what the newest verdict is of, and show how it stands.
    A copy that somebody writes meanwhile is an alarm. A fourth click stops it."""
    history = History(settings)
    window.goto(address)
    settled(window)
    clicks = [
        window.locator("a[href*='verdict?run=']").first,
        window.get_by_text("Watch this", exact=True),
        window.get_by_role("link", name="See how it stands"),
    ]
    for click in clicks:
        click.click(timeout=STORY_MS)
    at_tab(window, "Watch")
    facts = history.list(1)[0].facts
    sink = window.get_by_text(f"{facts.source} → {facts.sink}")
    expect(sink).to_be_visible(timeout=STORY_MS)
    expect(window.get_by_text("1 HOLDS")).to_be_visible(timeout=STORY_MS)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    place = format_compact(Lineage(facts.source, 0, 0, 0))
    producer.produce(facts.sink, b"0", b"0", 0, headers=[(COMPACT_HEADER, place)])
    assert producer.flush(30) == 0
    expect(window.get_by_text("1 VIOLATED")).to_be_visible(timeout=STORY_MS)
    expect(window.get_by_text("Violated: duplicate: 1 of 9,001")).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "newcomer-watched.png", full_page=True)
    window.get_by_role("button", name="Stop watching").click()
    expect(sink).to_have_count(0, timeout=STORY_MS)
    history.engine.dispose()
