"""The page Transactions: committed, aborted and open ones, none at all, a topic in no transaction,
no broker."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from hypothesis import given, strategies as st

from tests.app.conftest import OpenPage, texts
from tests.backend.kafka.topics import Writer
from tests.runs import Finished
from topicproof.app.shell.url_state import TransactionsState, read_transactions, write_transactions
from topicproof.app.topic import transaction_list, transaction_rows
from topicproof.app.wording import TRANSACTION_WORDS, all_listed, open_word, transactions_balance
from topicproof.backend.kafka.browse.causes import abort_command, advice as advice_to
from topicproof.backend.kafka.log.over_partitions import over_partitions
from topicproof.backend.settings import Settings
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.facts.log_facts import TRANSACTION_COLUMNS
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.readings import column_names

BOUNDS = Bounds("squares", (PartitionBounds(0, 0, 20, 20), PartitionBounds(1, 0, 8, 12)))
FOUND = pd.DataFrame(
    [
        (0, 7, 0, 0, 4, 5, 500, 1_000, 1_004, "COMMITTED", 5, 1_010, 0),
        (0, 7, 0, 6, 8, 3, 300, 2_000, 2_002, "ABORTED", 9, 2_050, 1),
        (1, 8, 2, 8, 11, 4, 400, 3_000, 3_003, "OPEN", None, None, None),
    ],
    columns=column_names(TRANSACTION_COLUMNS),
).astype({"marker_offset": "Int64", "marker_timestamp": "Int64", "marker_epoch": "Int64"})


@given(
    partition=st.sampled_from([None, 0, 1]),
    producer=st.sampled_from([None, 7, 8]),
    outcomes=st.lists(st.sampled_from(list(TRANSACTION_WORDS)), unique=True),
    skip=st.integers(0, 2),
    chosen=st.sampled_from([None, (0, 6), (1, 8)]),
)
def test_an_address_reopens_the_same_selection(
    partition: int | None,
    producer: int | None,
    outcomes: list[str],
    skip: int,
    chosen: tuple[int, int] | None,
) -> None:
    """Story: any selection that the page can show is written to the address and read back without a
    notice."""
    selection = TransactionsState("squares", partition, producer, tuple(outcomes), skip, chosen)
    assert read_transactions(write_transactions(selection), BOUNDS, FOUND) == (selection, [])


@given(
    st.dictionaries(
        st.sampled_from(["partition", "producer", "outcome", "skip", "transaction"]), st.text()
    )
)
def test_any_address_is_some_selection(params: dict[str, str]) -> None:
    """Story: an address is garbage. There is always a selection, and what it names exists."""
    selection, _notices = read_transactions(params, BOUNDS, FOUND)
    assert selection.partition in (None, 0, 1) and selection.producer in (None, 7, 8)
    assert 0 <= selection.skip < len(FOUND)


def test_the_latest_come_first_and_conditions_add_up() -> None:
    """Story: somebody looks for what was aborted on partition 0. An open one lasts until now."""
    assert transaction_rows.matching(FOUND, TransactionsState("squares"))[
        "first_offset"
    ].tolist() == [
        8,
        6,
        0,
    ]
    aborted = transaction_rows.matching(
        FOUND, TransactionsState("squares", partition=0, outcomes=("ABORTED",))
    )
    assert aborted["first_offset"].tolist() == [6]
    assert transaction_rows.matching(
        FOUND, TransactionsState("squares", partition=1, producer=7)
    ).empty
    assert transaction_rows.timed(FOUND, 10_000)["duration_ms"].tolist() == [10, 50, 7_000]
    assert transaction_rows.producer_ids(FOUND, 9) == [7, 8, 9]


def test_a_lane_is_a_transactional_id_and_a_bar_a_whole_transaction() -> None:
    """Story: two producers wrote to several partitions, and one id is forgotten. Lanes are in the
    order of their numbers; too many of them become partitions."""
    names = {7: "run-numbers-10", 8: "run-numbers-9"}
    assert transaction_rows.lanes(FOUND, {7: "a" * 40}).tolist() == ["…" + "a" * 26] * 2 + [
        "producer 8"
    ]
    lanes = transaction_rows.lanes(FOUND, names)
    assert transaction_rows.lane_order(lanes) == ["run-numbers-9", "run-numbers-10"]
    same = {7: "x" * 30, 8: "y" + "x" * 29}
    assert set(transaction_rows.lanes(FOUND, same)) == set(same.values()), "no two ids share a lane"
    many = pd.concat([FOUND.assign(producer_id=FOUND["producer_id"] + n) for n in range(0, 90, 3)])
    assert set(transaction_rows.lanes(many, names)) == {"p0", "p1"}
    assert transaction_rows.by_partition(many) and not transaction_rows.by_partition(FOUND)


def test_ids_of_one_program_are_told_apart_in_the_list_of_all_transactions() -> None:
    """Story: all ids of a program begin alike, and their column is narrow. It shows their ends; a
    download has them whole."""
    ids = [f"warehouse-europe-billing-service-{number}" for number in (1, 2)]
    listed = pd.DataFrame({"transactional id": ids, "withheld": [1_000, 0]})
    html = transaction_list.tinted(listed, pd.DataFrame({"outcome": ["OPEN"] * 2})).to_html()
    assert all(f">…{name[-transaction_list.ID_CHARACTERS :]}<" in html for name in ids)
    assert listed["transactional id"].tolist() == ids
    assert ">1,000<" in html


def test_no_transactional_id_takes_the_lane_of_another() -> None:
    """Story: somebody gives ids that look like lanes of ours, that differ in what nobody sees, or
    that are longer than any screen."""
    rows = pd.DataFrame({"producer_id": [1, 2, 5, 7, 8, 9], "partition": 0})
    names = {1: "pay\u200bments", 2: "pay\\u200bments", 7: "producer 5"}
    names |= {8: "a" + "s" * 20_000, 9: "b" + "s" * 20_000}
    lanes = transaction_rows.lanes(rows, names).tolist()
    assert len(set(lanes)) == 6 and max(map(len, lanes)) <= 110
    assert all(lane.isprintable() for lane in lanes)
    alike = rows.assign(producer_id=[1, 2] * 3)
    assert not transaction_rows.by_partition(alike)
    assert transaction_rows.lanes(alike, {1: "p0", 2: "p1"}).tolist() == ["p0", "p1"] * 3
    numbers = {(0, 0): 0, (0, 6): 1, (1, 8): 1}
    parts = FOUND.assign(outcome="ABORTED")
    assert transaction_rows.whole_ones(parts, numbers, None)["first_offset"].tolist() == [0, 6]
    assert transaction_rows.whole_ones(parts, numbers, (1, 8))["first_offset"].tolist() == [0, 8]
    assert len(transaction_rows.whole_ones(FOUND, numbers, None)) == 3, (
        "a split one has both outcomes"
    )


def test_a_hanging_transaction_is_an_outcome() -> None:
    """Story: the log calls two transactions open, and no coordinator knows of one. A filter for
    open ones shows both."""
    hangs = OpenTransaction(1, 8, 2, -1, 8, None, None, 5_000, None, 4, 4, True)
    found = transaction_rows.with_hanging(FOUND, [hangs])
    assert found["outcome"].tolist() == ["COMMITTED", "ABORTED", "HANGING"]
    assert transaction_rows.with_hanging(FOUND, [])["outcome"].tolist()[-1] == "OPEN"
    for wanted in ("OPEN", "HANGING"):
        shown = transaction_rows.matching(found, TransactionsState("squares", outcomes=(wanted,)))
        assert shown["first_offset"].tolist() == [8]
    assert "hanging" in transaction_rows.why("HANGING", hangs, None)


def test_a_transaction_on_three_partitions_counts_once() -> None:
    """Story: a producer has one transaction open on three partitions, and committed one on two.
    Nobody counts five transactions, and a hanging one on two partitions is one."""
    parts = [
        (partition, 7, 0, first, first + 1, 2, 200, began, began + 4, outcome, marker, end, 0)
        for partition, first, began, outcome, marker, end in (
            (0, 0, 1_000, "COMMITTED", 2, 1_010),
            (1, 0, 1_001, "COMMITTED", 2, 1_011),
            (0, 3, 2_000, "OPEN", None, None),
            (1, 3, 2_001, "OPEN", None, None),
            (2, 0, 2_002, "OPEN", None, None),
        )
    ]
    rows = pd.DataFrame(parts, columns=column_names(TRANSACTION_COLUMNS)).astype(
        {"marker_offset": "Int64", "marker_timestamp": "Int64", "marker_epoch": "Int64"}
    )
    whole = over_partitions(rows)
    numbers = {
        place: number
        for number, (partitions, firsts) in enumerate(
            zip(whole["partitions"], whole["first_offset_by_partition"], strict=True)
        )
        for place in zip(partitions, firsts, strict=True)
    }
    counts = transaction_rows.whole_outcomes(rows, numbers, whole)
    assert counts == {"COMMITTED": 1, "OPEN": 1}
    hangs = rows.assign(outcome=rows["outcome"].replace("OPEN", "HANGING"))
    assert transaction_rows.whole_outcomes(hangs, numbers, whole) == {"COMMITTED": 1, "HANGING": 1}
    sentence = transactions_balance(counts, 3)
    assert sentence.startswith("**2** transactions = ") and sentence.endswith(", on 3 partitions")
    assert all_listed(1) == "The one transaction that matches is drawn and listed"


@pytest.mark.parametrize(
    ("state", "age_ms", "decided_ms", "hanging", "word", "advice"),
    [
        ("Ongoing", 12_000, None, False, "open", "the coordinator aborts it in 48 s"),
        ("Ongoing", 61_000, None, False, "open", "It has timed out"),
        ("Ongoing", 90_000, None, False, "overdue", "It has timed out"),
        ("PrepareCommit", 500, 100, False, "open", "the markers are being written"),
        ("PrepareCommit", 90_000, 80_000, False, "stuck", "look at the brokers' logs"),
        (
            None,
            90_000,
            None,
            True,
            "hanging",
            "The command shows what would be lost",
        ),
    ],
)
def test_each_open_transaction_has_its_word_and_its_advice(
    state: str | None, age_ms: int, decided_ms: int | None, hanging: bool, word: str, advice: str
) -> None:
    """Story: transactions are open for as many reasons as there are things to do about them."""
    timeout_ms = None if hanging else 60_000
    one = OpenTransaction(
        1, 8, 2, -1, 8, "squares-1", state, age_ms, timeout_ms, 4, 4, hanging, decided_ms
    )
    assert open_word(one).word == word
    assert advice in advice_to(one)
    command = abort_command(one, "squares", " --bootstrap broker:9092")
    assert command == "topicproof abort squares 1 8 --bootstrap broker:9092"


def test_the_transactions_of_a_run(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: somebody looks at a run's sink. The page counts what the report's raw log counted,
    draws one trace an outcome, and the table names the transactional ids of the run."""
    assert at_home.home
    app = open_page("transactions", topic=finished.sink, outcome="aborted")
    assert not app.exception
    said = texts(app)
    assert "nothing is open" in said
    table = app.dataframe[1].value
    assert len(table) and set(table["outcome"]) == {"✕ aborted"}
    # A transaction has a row for each of its partitions, and counts once.
    whole = sum(1 / len(partitions.split(", ")) for partitions in table["partitions"])
    assert f"✕ **{round(whole):,}** aborted" in said
    assert int(table["records"].sum()) == finished.report.fates["aborted"]
    assert table["transactional id"].str.startswith(finished.run.id).all()
    assert "its producer aborted it" in set(table["why"])
    assert app.get("plotly_chart")
    assert len(app.query_params["topic"]) and "outcome" in app.query_params

    app.pills(key="outcomes").set_value([]).run()
    assert "outcome" not in app.query_params
    assert len(app.dataframe[1].value) > len(table)


def test_open_transactions_are_on_top_and_one_is_shown_in_detail(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a transaction is open, others wait behind it. The page says how old it is, what it
    withholds and what to do; the chosen transaction leads to Compare."""
    assert at_home.home
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A3 A+ B2 B-")
    writer.write("C4", partition=1)
    writer.write("n2", partition=1)
    app = open_page("transactions", topic=topic, transaction="0/4")
    assert not app.exception
    said = texts(app)
    assert (
        "**3** transactions = " in said
        and "● **1** committed" in said
        and "◔ **1** open, on 2 partitions" in said.replace("]", "")
    )
    assert (
        f"{topic}-C has been open for" in said
        and "withholds 6 records of partition 1 from offset 0" in said
    )
    assert "Its producer may still end it" in said
    assert "Partition 0, offset 4" in said and "its marker is at 6" in said
    assert "Its producer aborted it." in said
    table = app.dataframe[1].value
    assert table["outcome"].tolist() == ["◔ open", "✕ aborted", "● committed"]
    assert table["transactional id"].tolist() == [f"{topic}-{who}" for who in "CBA"]
    assert table["why"].tolist()[1:] == ["its producer aborted it", ""]
    # The list of the whole cluster has one row for each, in the same words.
    every = open_page("topics", view="all-transactions", id=topic)
    assert not every.exception and every.get("plotly_chart")
    listed = every.dataframe[0].value
    assert listed["transactional id"].tolist() == [f"{topic}-{who}" for who in "CBA"]
    assert listed["outcome"].tolist() == table["outcome"].tolist()
    assert listed["why"].tolist()[1:] == table["why"].tolist()[1:]
    assert listed["withheld"].tolist()[0] == 6 and listed["topics"].tolist() == [topic] * 3
    assert listed["state"].tolist() == ["Ongoing", "CompleteAbort", "CompleteCommit"]
    assert 0 <= listed["of its timeout"].iloc[0] < 1
    every.button_group(key="ends").set_value(["ABORTED"]).run()
    assert every.dataframe[0].value["transactional id"].tolist() == [f"{topic}-B"]
    writer.write("C+")
    app.button(key="refresh").click().run()
    assert (
        not app.exception and "nothing is open" in texts(app) and "● **2** committed" in texts(app)
    )


def test_no_transaction_at_all_is_said(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: one topic is empty, another was written without transactions, a third does not exist.
    The page reports each."""
    assert at_home.home
    app = open_page("transactions", topic=new_topic())
    assert not app.exception
    assert "This topic is empty" in texts(app) and "**0** offsets" in texts(app)
    plain = new_topic()
    Writer(bootstrap, plain).write("n7")
    app = open_page("transactions", topic=plain)
    assert not app.exception and "None of the 7 offsets belongs to a transaction" in texts(app)
    app = open_page("transactions", topic="no-such-topic", transaction="x", skip="9", outcome="y")
    assert not app.exception and "no topic no-such-topic" in texts(app)


def test_bad_values_in_the_url_fall_back_with_a_notice(
    open_page: OpenPage, at_home: Settings, finished: Finished
) -> None:
    """Story: an address was cut off and mistyped. The page shows what it can and says what did not
    fit."""
    assert at_home.home
    app = open_page(
        "transactions",
        topic=finished.sink,
        partition="99",
        producer="abc",
        outcome="aborted,y",
        skip="99999999",
        transaction="0-1",
    )
    assert not app.exception
    notices = "\n".join(str(one.value).replace("\\", "") for one in app.warning)
    for part in (
        "no partition 99",
        "producer abc is not a number",
        "no outcome y",
        "cannot be skipped",
        "begins at 0-1",
    ):
        assert part in notices


@pytest.mark.usefixtures("empty_home")
def test_an_unreachable_broker_is_said(open_page: OpenPage) -> None:
    """Story: the address of Kafka is wrong. The page has its frame and says which address did
    what."""
    app = open_page("transactions")
    assert not app.exception
    assert app.title[0].value == "Topics"
    assert "No Kafka broker can be reached (127.0.0.1:1: Connection refused)" in texts(app)
