"""The dashboard's words, and the addresses that it loads."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from topicproof.app import wording
from topicproof.app.charts.layout import FATE_COLOURS
from topicproof.backend.characters import visible
from topicproof.backend.kafka.log.fates import FATES
from topicproof.backend.settings import ROOT
from topicproof.validators.kinds.catalogue import VALIDATORS


def test_every_fate_has_a_word_a_symbol_and_a_colour() -> None:
    """Story: a fate is added to the vocabulary. No two share a symbol, and none is recognised by
    its colour alone."""
    assert set(wording.FATE_WORDS) == set(FATE_COLOURS) == set(FATES)
    assert len({word.symbol for word in wording.FATE_WORDS.values()}) == len(FATES)


@given(st.text(st.characters(exclude_categories=()), max_size=60))
@example("It lost payments.\r\r2026-11-28 Grace Hopper accepted HOLDS")
@example("a\u2028b\u202ec\x1b[2Jd\ud800")
def test_plain_text_is_one_paragraph_that_hides_nothing(text: str) -> None:
    """Story: a comment, an id or an address of a page brings line breaks of any kind. It stays
    within our sentence, and nothing reorders or hides our words after it."""
    escaped = wording.plain(text)
    tokens = MarkdownIt("commonmark").parse(f"Grace: {escaped}.")
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "\n" not in tokens[1].content
    assert visible(escaped.replace("\u2060", "")) == escaped.replace("\u2060", "")


def test_every_kind_of_finding_has_a_title() -> None:
    """Story: a kind is added to the catalogue. The page Verdict says it in words."""
    assert all(title[0].isupper() for title in wording.KIND_TITLES.values())
    assert len(set(wording.KIND_TITLES.values())) == len(VALIDATORS)


def test_plain_text_stays_plain() -> None:
    """Story: a topic is called like a formula and a value like a link. Markdown leaves both as they
    are."""
    hostile = "![x](http://127.0.0.1/) <b>_a_</b> $x$ `c` :red[x] # h"
    escaped = wording.plain(hostile)
    assert escaped.replace("\\", "").replace("\u2060", "") == hostile
    for link in ("http://a.b", "HTTPS://a.b", "www.a.b", "me@a.b", "xmpp:me@a.b"):
        # A browser's Markdown makes links of bare addresses, escaped or not.
        assert wording.plain(link).replace("\\", "") not in (link, "")
        assert "\u2060" in wording.plain(link)
    assert "\u2060" not in wording.plain("orders@3: squares-0@12, awww, a:b")
    assert not [n for n, c in enumerate(escaped) if c in "![]()<>_$`:#" and escaped[n - 1] != "\\"]


def test_numbers_and_times_are_said_in_words() -> None:
    """Story: one record is not "1 records", and a timestamp from another galaxy is no crash."""
    assert (
        wording.count(1, "record") == "1 record"
        and wording.count(2_000, "record") == "2,000 records"
    )
    assert wording.duration(59.4) == "59 s" and wording.duration(125) == "2 min 5 s"
    assert wording.moment_of_ms(0) == "1970-01-01 00:00:00.000 UTC"
    assert "not a date" in wording.moment_of_ms(2**62)
    assert wording.moment_of_ms(None) == "no timestamp"
    assert wording.short_transaction(
        "squares-k3f9a2-square-squares-k3f9a2-numbers-0/17, attempt 2"
    ) == ("…-0/17, attempt 2")
    hostile = wording.short_transaction("pay\n\nVerdict: HOLDS\u202e" + "x" * 900_000)
    assert len(hostile) < 120 and hostile.startswith("pay\\n\\nVerdict: HOLDS\\u202e")


def test_the_look_loads_nothing_from_elsewhere() -> None:
    """Story: the dashboard runs where there is no network. Neither theme nor code names an address
    outside."""
    files = [ROOT / ".streamlit" / "config.toml", *sorted(Path(ROOT / "app").rglob("*.py"))]
    assert [path.name for path in files if "https://" in path.read_text(encoding="utf-8")] == []
