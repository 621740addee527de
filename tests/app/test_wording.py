"""The dashboard's words, and the addresses that it loads."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st
from markdown_it import MarkdownIt

from topicproof.app import wording
from topicproof.app.charts.layout import FATE_COLOURS
from topicproof.app.topic import tables, topic_list
from topicproof.app.topic.payload import decoded_part
from topicproof.backend.characters import visible
from topicproof.backend.formats.formats import Formats
from topicproof.backend.kafka.browse.overview import TopicOverview
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.kafka.coordination.worst_lag import Lag, StuckGroup
from topicproof.backend.kafka.log.fates import FATES
from topicproof.backend.settings import ROOT
from topicproof.validators.coordinator import OpenTransaction, whole_transactions
from topicproof.validators.finding import (
    Bounds,
    Check,
    Fate,
    Finding,
    Outcome,
    PartitionBounds,
    Witness,
)
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.sentences import first_of


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


@pytest.mark.parametrize(
    "name",
    [
        ":material/verified:",
        ":material_verified:",
        ":streamlit:",
        ":white_check_mark:",
        ":+1:",
        ":100:",
    ],
)
def test_no_name_becomes_an_icon(name: str) -> None:
    """Story: a group is called like the icon of an accepted verdict. Streamlit replaces such names
    after Markdown has taken the escapes away."""
    parsed = wording.plain(f"x:y billing{name}{name} accepted at 10:00:00").replace("\\", "")
    assert parsed.replace("\u2060", "") == f"x:y billing{name}{name} accepted at 10:00:00"
    again = parsed.replace(":material/", ":material_")
    assert re.findall(r"(?<!\d):[\w+-]+:", again, re.ASCII) == []
    assert wording.plain("1:white_check_mark:").count("\u2060") == 1
    assert parsed.endswith("accepted at 10:00:00")


def test_texts_of_others_in_labels_and_tooltips_are_plain() -> None:
    """Story: the author of a contract puts a green badge into its file name, and a record in a
    journal a link into the tooltip of a button. Labels and tooltips take Markdown, too."""
    of_others = {"subject", "why_no_kill", "why_no_freeze", "why_no_finish"}
    for name in ("views/home.py", "run/run_progress.py"):
        nodes = list(ast.walk(ast.parse((ROOT / "app" / name).read_text(encoding="utf-8"))))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        # `not why_no_kill(run)` shows nothing.
        conditions = {id(node.operand) for node in nodes if isinstance(node, ast.UnaryOp)}
        plain = {
            id(inner)
            for call in calls
            if ast.unparse(call.func) == "wording.plain"
            for inner in ast.walk(call)
        }
        texts = [call for call in calls if ast.unparse(call.func).split(".")[-1] in of_others]
        assert texts and all(id(call) in plain | conditions for call in texts), name


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


def test_a_title_counts_what_its_sentence_counts() -> None:
    """Story: one pair is out of order, and three more are because of duplicates. Nobody reads 4
    beside a sentence about 1. One offset is no offsets."""
    pairs = Check("order", 2_998, "pairs", (Witness.READ_COMMITTED,))
    order = Finding("order", Outcome.VIOLATED, 4, 1, "duplicate", (), "1 of 2,998 is out of order.")
    assert "1 of 2,998 pairs, 3 more explained by Duplicates" in wording.finding_title(order, pairs)
    alone = replace(order, count=1, explained_by=None)
    assert wording.finding_title(alone, pairs).endswith("· 1 of 2,998 pairs")
    fates = dict.fromkeys(Fate, 0) | {Fate.COMMITTED: 1}
    assert wording.balance(1, fates).startswith("**1** offset (HW − start)")


def test_a_short_key_beside_a_long_value_is_decoded() -> None:
    """Story: a value of 2 MB is read in part. Its key of 5 bytes is whole, and decoded."""
    long = Row(0, 0, 0, b"12345", b"x" * 10, (), 15, Fate.COMMITTED, None, cut=frozenset({"value"}))
    formats = Formats()
    key, value = (decoded_part(long, "t", formats, part) for part in ("key", "value"))
    formats.close()
    assert value is not None and value.reason == "Only its first 10 bytes were read."
    assert key is None or key.reason is None or "first" not in key.reason


def test_a_topic_whose_group_is_stuck_is_one_with_groups_behind() -> None:
    """Story: a group has read all it can, and an open transaction withholds the rest. Its lag is 0,
    so the list names it as stuck, and the filter for groups that are behind has it."""
    bounds = Bounds("payments", (PartitionBounds(0, 0, 5, 9),))
    quiet = TopicOverview(bounds, 1, (), Lag("billing", "payments", 0, True))
    stuck = replace(quiet, stuck=(StuckGroup("billing", "payments", (0,)),))
    assert [topic_list.passes(each, {}, topic_list.BEHIND) for each in (quiet, stuck)] == [
        False,
        True,
    ]
    table = tables.topic_table([quiet, stuck], {})
    assert table["slowest group"].tolist() == [None, "billing, stuck"]


def test_an_open_transaction_is_one_on_all_its_partitions() -> None:
    """Story: a payment service holds a transaction open on three partitions of two topics, and one
    of an earlier producer hangs. The operator reads two sentences, with all that is withheld."""
    part = OpenTransaction(
        0, 7, 0, -1, 5, "fraud-check-7", "Ongoing", 39_000, 900_000, 2, 16_668, False
    )
    ghost = replace(part, producer_id=9, transactional_id=None, hanging=True, timeout_ms=None)
    places = [("payments", 0), ("payments", 1), ("refunds", 0)]
    hanging, opened = whole_transactions(
        [*((topic, replace(part, partition=p)) for topic, p in places), ("payments", ghost)]
    )
    assert hanging.hanging and hanging.why == ghost.why
    assert (opened.topics, opened.withheld) == (("payments", "refunds"), 50_004)
    assert opened.why == (
        "fraud-check-7 has been open for 39 s (aborted after 15 minutes) and withholds 50,004"
        " records of 3 partitions of 2 topics."
    )
    word = wording.open_word(ghost)
    assert wording.without_badge(hanging.why, word).startswith("Producer 9 last wrote")


def test_the_look_loads_nothing_from_elsewhere() -> None:
    """Story: the dashboard runs where there is no network. Neither theme nor code names an address
    outside."""
    files = [ROOT / ".streamlit" / "config.toml", *sorted(Path(ROOT / "app").rglob("*.py"))]
    assert [path.name for path in files if "https://" in path.read_text(encoding="utf-8")] == []


def test_long_lists_name_their_first() -> None:
    """Names are joined as a person joins them. Of many, some are named and the others counted."""
    assert first_of(["a"], 3) == "a"
    assert first_of(["a", "b", "c"], 3) == "a, b and c"
    assert first_of([f"g{number}" for number in range(1_004)], 2) == "g0, g1 and 1,002 more"
