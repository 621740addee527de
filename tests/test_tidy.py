"""The house rules that matter, as tests: one way of imports, one home of Kafka's settings, docs
that keep up."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from topicproof.backend import errors
from topicproof.backend.errors import TopicproofError
from topicproof.backend.faults.kinds import KINDS
from topicproof.backend.kafka.browse import causes
from topicproof.backend.settings import ROOT
from topicproof.backend.watch import conditions
from topicproof.validators.finding import Fate
from topicproof.validators.kinds.catalogue import VALIDATORS

PACKAGES = ("app", "backend", "validators")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a source file, which many rules look at. They change nothing in it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("validators", {"app", "backend", "confluent_kafka", "kafka", "streamlit", "plotly"}),
        ("backend", {"app", "streamlit", "plotly"}),
    ],
)
def test_imports_go_one_way(package: str, forbidden: set[str]) -> None:
    """Story: app -> backend -> validators. No import runs back, and validators know neither Kafka
    nor Streamlit."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in imported(path)
        if name.removeprefix("topicproof.").split(".")[0] in forbidden
    ]
    assert wrong == []


ROOMS = (
    *(
        "validators",
        "validators.lineage",
        "validators.contract_terms",
        "validators.question",
        "validators.facts",
        "validators.folded",
        "validators.fast_path",
        "validators.ledger",
    ),
    *(
        "validators.kinds",
        "validators.next_steps",
        "validators.incidents",
        "validators.found_rows",
        "validators.verdict_sentence",
        "validators.judge",
        "validators.increments",
        "validators.who",
        "validators.selftest",
    ),
    *(
        "backend.errors",
        "backend.characters",
        "backend.properties",
        "backend",
        "backend.trust",
        "backend.kafka.client_configs",
        "backend.kafka.tokens",
        "backend.kafka.admission",
        "backend.services",
        "backend.kafka.log",
        "backend.kafka",
        "backend.kafka.coordination",
        "backend.formats",
    ),
    *(
        "backend.kafka.browse",
        "backend.sink",
        "backend.sink.delivery",
        "backend.sink.writer",
        "backend.sink.real_time",
        "backend.sink.exactly_once",
        "backend.sink.stateful",
        "backend.sink.database",
        "backend.evidence",
        "backend.faults",
        "backend.contracts",
        "backend.judging",
        "backend.doctor",
    ),
    *(
        "backend.history",
        "backend.watch",
        "backend.runs",
        "backend.matrix",
        "backend.torture",
        "backend.verifying",
        "backend.mcp_server",
        "backend.commands",
        "backend.harness",
        "backend.cli",
    ),
    *(
        "app.wording",
        "app.charts",
        "app.shell.login_log",
        "app.shell.entrance",
        "app.topic.topic_findings",
        "app.topic.snapshot",
        "app.topic.payload",
        "app.topic.field_columns",
        "app.shell.url_state",
        "app.session",
        "app.shell",
        "app.verdict",
        "app.topic",
        "app.run",
        "app.check",
        "app",
        "app.views",
    ),
)
"""Each may import those before it: a folder's own modules, or a module that stands above its
folder."""


def room_of(module: str) -> str:
    return module if module in ROOMS else module.rpartition(".")[0]


def arrows() -> Iterator[tuple[str, str]]:
    """Who imports whom among our modules, late imports and those for types alone included."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES
    }
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("topicproof."):
                home = (node.module or "").removeprefix("topicproof.")
                for alias in node.names:
                    target = f"{home}.{alias.name}"
                    yield (
                        ".".join(path.relative_to(ROOT).with_suffix("").parts),
                        target if target in modules else home,
                    )


def test_rooms_import_only_what_stands_below_them() -> None:
    """Story: somebody draws the structure. No import runs back up: the sink knows no fault, and
    evidence knows no judge."""
    wrong = [
        f"{source} imports {target}"
        for source, target in arrows()
        if ROOMS.index(room_of(target)) > ROOMS.index(room_of(source))
    ]
    assert wrong == []


def test_the_fast_path_has_one_importer() -> None:
    """Story: the fast path is a door that only one of the ledger's two ways opens. Delete both,
    and nothing else of the full scan changes."""
    outside = {
        source
        for source, target in arrows()
        if target.startswith("validators.fast_path") and "validators.fast_path" not in source
    }
    assert outside == {"validators.ledger.by_proof"}


EMPTY_NAMES = {
    *("found", "one", "told", "said", "seen", "given", "known", "own", "wanted", "heard", "asked"),
    *("there", "here", "made", "kept", "shown"),
}
PARTICIPLES = EMPTY_NAMES | {
    *("held", "chosen", "taken", "left", "drawn", "built", "read", "sent", "gone", "missing")
}


def names_bound(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    arguments = function.args
    return stored | {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}


def test_names_say_what_they_hold() -> None:
    """Story: a stranger reads a function. No variable or parameter has a name that fits anything,
    no class is named by a participle, and no two private classes share a name."""
    classes: Counter[str] = Counter()
    wrong: list[str] = []
    for path in SOURCES:
        place = path.relative_to(ROOT)
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = names_bound(node) & EMPTY_NAMES
                wrong += [f"{place}: {node.name} binds {name}" for name in sorted(names)]
            elif isinstance(node, ast.ClassDef):
                if node.name.strip("_").lower() in PARTICIPLES:
                    wrong.append(f"{place}: class {node.name}")
                if node.name.startswith("_"):
                    classes[node.name] += 1
    wrong += [
        f"class {name} is there {count} times" for name, count in classes.items() if count > 1
    ]
    assert wrong == []


TOO_LARGE = {"Settings"}
"""Classes with more than 20 fields. None may be added."""


def test_a_class_of_values_is_seen_at_a_glance() -> None:
    """Story: a reader opens the ledger, or any other class that only holds values. It has at most
    20 fields; what belongs together is a value of its own."""
    fields_by_class = {
        node.name: sum(isinstance(statement, ast.AnnAssign) for statement in node.body)
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    }
    assert {name for name, count in fields_by_class.items() if count > 20} == TOO_LARGE
    assert fields_by_class["Ledger"] <= 12


def test_arguments_are_not_grouped_for_the_formatter() -> None:
    """Story: a reader counts the arguments of a call. None are hidden in a tuple that is unpacked
    on the spot."""
    wrong = [
        f"{path.relative_to(ROOT)}:{argument.lineno}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        for argument in node.args
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple)
    ]
    assert wrong == []


def test_each_file_of_the_sink_is_read_in_one_sitting() -> None:
    """Story: somebody who must trust the sink reads it whole. None of its files is over 300 lines
    long."""
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCES
        if path.is_relative_to(ROOT / "backend" / "sink")
    }
    assert {name: count for name, count in lines.items() if count > 300} == {}


def test_received_folders_are_read_within_limits() -> None:
    """Story: a file of a received folder may be anything. It is opened in limits.py, which bounds
    it, or by what is named here: hashes, copies of our own evidence, and what the gate passed."""
    readers = {"read_table", "read_text", "read_bytes", "read_metadata", "read_schema", "loads"}
    readers |= {"ParquetFile", "open"}
    allowed = {
        ("attestation.py", "open"),  # bounded there
        ("manifest.py", "open"),  # hashes
        ("unpacking.py", "open"),  # unpacks within limits
        ("private_copy.py", "open"),  # copies within limits
        ("page.py", "open"),  # bounded there
        ("page.py", "read_text"),  # files of this program
        ("delivery.py", "open"),  # our own evidence
        ("copy.py", "ParquetFile"),  # our own evidence, by batches
        ("findings.py", "ParquetFile"),  # by batches, after the gate
        ("derived.py", "loads"),  # a report that was parsed
        ("derived.py", "read_schema"),  # after the gate
        ("derived.py", "read_metadata"),  # after the gate
    }
    rooms = [*(ROOT / "backend/evidence").glob("*.py"), *(ROOT / "backend/verifying").glob("*.py")]
    calls = {
        (path.name, node.func.attr)
        for path in (*rooms, ROOT / "backend/judging/capture_store.py")
        if path.name != "read_limits.py"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in readers
    }
    assert calls == allowed


def test_spark_reads_no_file_without_a_schema() -> None:
    """Story: a file that Spark reads may be anybody's. Without a schema, Spark takes one from the
    file, and Spark's own schema in the footer of Parquet may hold SQL and name classes."""
    files = {"parquet", "orc", "json", "csv", "text", "xml", "table", "load", "jdbc"}

    def chain(node: ast.expr) -> Iterator[str]:
        while isinstance(node, ast.Call | ast.Attribute):
            if isinstance(node, ast.Attribute):
                yield node.attr
            node = node.func if isinstance(node, ast.Call) else node.value

    reads = {
        (path.name, frozenset(chain(node)))
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in files and {"read", "readStream"} & {*chain(node)}
    }
    assert {"capture_store.py", "derived.py", "readings.py"} <= {name for name, _ in reads}
    # Kafka and our own sources have a schema of their own.
    wrong = {
        name for name, parts in reads if "schema" not in parts and not {"format", "load"} <= parts
    }
    assert wrong == set()


QUOTING = {"shell_word", "shell_words", "command_line"}
HARMLESS = {
    *("offset", "replicas", "port + 1", "DASHBOARD_PORT + 1"),
    *("' --real-time' if real_time else ''", "''.join(options_text)"),
    *("config", "group_word"),  # quoted above
}
"""Numbers, options of ours, and what the lines above have quoted."""


def unquoted_in_commands(text: ast.JoinedStr) -> Iterator[str]:
    """The values in a text's commands to copy that no function has quoted."""
    before = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            before += str(part.value)
            continue
        assert isinstance(part, ast.FormattedValue)
        command = re.split(r"`|[.:,;)] |^(?=--)", before)[-1]
        is_command = re.search(r"topicproof [a-z]|[a-z]\.sh |^ --[a-z-]+[ =]", command)
        call = part.value.func if isinstance(part.value, ast.Call) else None
        name = ast.unparse(part.value)
        if is_command and not (isinstance(call, ast.Name) and call.id in QUOTING):
            yield from () if name in HARMLESS or part.format_spec is not None else (name,)
        before += "x"


def test_values_in_commands_to_copy_are_quoted() -> None:
    """Story: somebody writes a sentence with a command to copy. A group, a file or a run in it is
    named by others, so it goes through `shell_word`, or is a number that is named here."""
    example = "f'Next: kafka-topics.sh --topic {topic} --at {offset}, or topicproof show {run}'"
    (text,) = (node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.JoinedStr))
    assert [*unquoted_in_commands(text)] == ["topic", "run"]
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.JoinedStr)
        for name in unquoted_in_commands(node)
    ]
    assert wrong == []


def test_readers_of_kafka_that_pages_call_have_a_budget() -> None:
    """Story: somebody adds a reader of groups. What strangers put into a cluster has no end, so a
    reader that a page calls is handed a `LookBudget`, or is one of these, which have a limit."""
    limited = {
        # What a cluster or a topic says of itself, and how to reach it.
        *("connect", "require_reachable", "describe_cluster", "describe_topic", "fetch_bounds"),
        # Offsets of the given partitions; so many newest offsets, records or producers.
        *("offsets_at", "newest_records", "read_window", "writers_at"),
        # Limits of a search; budgets of its own for each question.
        *("search", "search_all", "overview"),
    }
    parameters = {
        function.name: [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
        for path in (ROOT / "backend" / "kafka").rglob("*.py")
        for function in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef) and function.args.args
        if ast.unparse(function.args.args[0].annotation or ast.Constant(0))
        in ("Connection", "Address")
    }
    called = {
        alias.name
        for path in (ROOT / "app").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and "backend.kafka" in (node.module or "")
        for alias in node.names
    }
    readers = called & parameters.keys()
    assert {name for name in readers if "budget" not in parameters[name]} == limited


def test_whole_folders_are_removed_in_a_few_places_only() -> None:
    """Story: a plan, a contract and a received folder name places. None of them is ever removed:
    each function here removes what its own run, check or process made, in a folder of its own."""
    allowed = {
        ("copy.py", "without_payloads"),  # a run's evidence, which it replaces
        ("findings.py", "gather"),  # in a run's evidence
        ("capture_store.py", "empty"),  # a run's evidence, before it is judged
        ("check.py", "_remove"),  # a check's own folder
        ("clean.py", "clean"),  # a run's own folder
        ("processes.py", "emptied"),  # temporary files of our services
        ("spark.py", "stop"),  # sockets of our Spark
        ("storage.py", "discard"),  # intermediate results
        ("delivery.py", "_sweep"),  # private copies of killed processes
        ("storage.py", "_delete"),  # a twin, or files of it that are not here
    }
    removers = {"rmtree", "removedirs", "delete_file", "delete_dir", "delete_dir_contents"}
    calls = {
        (path.name, function.name)
        for path in SOURCES
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in removers
    }
    assert calls == allowed


def test_no_modules_import_each_other() -> None:
    """Story: the same within a room: there is no circle of imports, late ones included."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for source, target in arrows():
        sorter.add(source, target)
    sorter.prepare()


def test_everything_is_imported_from_topicproof() -> None:
    """Story: the folders lie beside each other, and a wheel holds them below topicproof. A module
    that is imported by both names exists twice."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (
            *SOURCES,
            *(ROOT / "tests").rglob("*.py"),
            *(ROOT / "benchmarks").rglob("*.py"),
        )
        for name in imported(path)
        if name.split(".")[0] in PACKAGES
    ]
    assert wrong == []


def test_client_settings_are_spelled_in_one_place() -> None:
    """Story: client_configs.py alone configures Kafka's clients, and backend/properties/ alone
    translates what people write for them. The sink's own options are the one exception: Spark hands
    them on as text."""
    spelled = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if "bootstrap.servers" in path.read_text(encoding="utf-8")
    }
    assert spelled <= {
        "backend/kafka/client_configs.py",
        "backend/properties/names.py",
        "backend/properties/spring.py",
        "backend/settings.py",
        "backend/sink/exactly_once.py",
        "backend/sink/options.py",
        "backend/runs/query.py",
    }


def test_one_module_makes_consumers() -> None:
    """Story: somebody adds a reader of a topic with a consumer of its own. A record of 3 kB that
    becomes 100 MB ends its process; `consumers.py` asks for limits."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("Consumer")
        and path != ROOT / "backend/kafka/consumers.py"
    ]
    assert wrong == []


READERS = {"read_range", "receive", "read_records", "received", "raw_records", "stored_batches"}
"""What yields records, each when it is asked for the next one."""
ONE_AT_A_TIME = {
    ("reading.py", "read_range"): "yields each",
    ("reading.py", "receive"): "yields each",
    ("reading.py", "read_records"): "yields each",
    ("raw_records.py", "raw_records"): "yields those of one batch, which has a limit",
    ("record_reader.py", "received"): "yields each",
    ("record_reader.py", "RecordReader"): "yields each, of at most RECORDS_AT_ONCE",
    ("record_reader.py", "WithheldRows"): "keeps six numbers and a digest of each",
    ("transaction_state.py", "_records"): "yields each; `read_states` counts names and partitions",
    ("journal.py", "JournalReader"): "yields each entry; `read_journal` counts them",
    ("windows.py", "_read"): "yields each; `check_values` counts what it keeps",
    ("cells.py", "_values"): "yields each; numbers alone are kept",
    ("fill.py", "numbers_in"): "keeps numbers",
    ("search.py", "latest"): "hands each to `_NewestRows`, which counts it",
    ("recorded_ids.py", "first_entry"): "asks for one",
    ("real_time.py", "SourceEnds"): "asks whether there is one",
    ("group.py", "GroupPosition"): "asks for one",
    ("member.py", "join"): "receives none, it is paused",
    ("bounded.py", "require_group"): "takes an error",
    ("reader.py", "Reader"): "takes as many as `records_within` allows, and keeps their offsets",
}
"""Readers that do not count what they hold, and why they need not."""


def test_readers_that_hold_records_count_them() -> None:
    """Story: somebody adds a reader that collects records in a list. Their keys, or the names of
    their headers, take all memory. Whoever takes records out of a consumer, or out of the raw log,
    counts them by `hold` of a budget, or is known to hold one at a time."""

    def takes_records(call: ast.Call) -> bool:
        name = ast.unparse(call.func).rpartition(".")[2]
        source = (
            ast.unparse(call.func.value).lower() if isinstance(call.func, ast.Attribute) else ""
        )
        polls = name in ("poll", "consume") and ("consumer" in source or "reader" in source)
        return bool(call.args) and (name in READERS or polls)

    uncounted = set()
    for path in SOURCES:
        for unit in parsed(path).body:
            calls = [node for node in ast.walk(unit) if isinstance(node, ast.Call)]
            is_counted = any(ast.unparse(call.func).endswith(".hold") for call in calls)
            if any(map(takes_records, calls)) and not is_counted:
                uncounted.add((path.name, getattr(unit, "name", "")))
    assert uncounted == set(ONE_AT_A_TIME)


def test_one_module_accepts_connections() -> None:
    """Story: somebody adds a server on loopback. Any user of the machine may connect to it, so it
    has the limits of local_servers.py, and does not end when files run out."""
    makers = {"create_server", "start_server", "create_unix_server", "start_unix_server"}
    callers = {
        path.name
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in makers or (node.func.attr == "accept" and not node.args)
    }
    importers = {
        path.name
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        if {getattr(node, "module", None), *(alias.name for alias in node.names)}
        & {"http.server", "socketserver"}
    }
    assert callers == importers == {"local_servers.py"}


def test_names_of_security_are_in_one_package() -> None:
    """Story: somebody adds a property for TLS or a login. It is translated for all three clients,
    or for none."""
    wrong = [
        f"{path.relative_to(ROOT)} spells {node.value}"
        for path in SOURCES
        if path.parent != ROOT / "backend" / "properties"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"security[._]protocol|(sasl|ssl)[._][a-z._]+", node.value)
        and node.value != "sasl_oauth_token_provider"
    ]
    assert wrong == []


def test_pages_are_changed_in_the_browser() -> None:
    """Story: a page that Streamlit leaves by itself may still ask for its fragments, and the answer
    would empty the page that follows. `places.open_page` has the browser go there. Only an address
    is redirected here, before anything is drawn."""
    switching = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(
            isinstance(node, ast.Attribute) and node.attr == "switch_page"
            for node in ast.walk(parsed(path))
        )
    }
    assert switching == {"app/main.py"}


def test_what_is_left_on_a_page_stays_there() -> None:
    """Story: somebody leaves a list that polls, and its last request calls what belonged to a
    widget of the page before: the address goes back to what was left. Whatever is called for a
    change asks first whether its widget still stands on the page (`places.if_drawn`)."""
    unasked = [
        f"{path.relative_to(ROOT)}:{keyword.value.lineno}"
        for path in SOURCES
        if path.is_relative_to(ROOT / "app")
        for keyword in ast.walk(parsed(path))
        if isinstance(keyword, ast.keyword)
        and keyword.arg in ("on_change", "on_select")
        and not (
            isinstance(keyword.value, ast.Call)
            and isinstance(keyword.value.func, ast.Name)
            and keyword.value.func.id == "if_drawn"
        )
    ]
    assert unasked == []


def test_one_module_writes_to_the_terminal() -> None:
    """Story: somebody prints a name. Only terminal.py writes what people read there, and it takes
    no markup: all else hands it pieces of a line. What is printed elsewhere is the log of a
    process, the standard input of another one, or what pytest shows of a failed test."""
    home = ROOT / "backend" / "commands" / "terminal.py"
    prints = {
        "backend/services/keeper.py",
        "backend/sink/task_watch.py",
        "backend/harness/program.py",
        "topicproof/pytest_plugin.py",
    }
    calls = {"StreamHandler", "basicConfig", "echo", "secho", "from_markup"}
    calls |= {"print_exc", "print_exception"}
    wrong = []
    for path in SOURCES:
        if path == home:
            continue
        name = str(path.relative_to(ROOT))
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Import(names=names) if any(one.name.startswith("rich") for one in names):
                    wrong.append(f"{name} imports rich")
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "rich":
                    wrong.append(f"{name} imports {module}")
                case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" as stream):
                    # The last line of `main` and the missing packages: nothing that is data.
                    if name not in ("backend/cli.py", "topicproof/__main__.py"):
                        wrong.append(f"{name} uses sys.{stream}")
                case ast.Call(func=ast.Name(id="print")) if name not in prints:
                    wrong.append(f"{name} prints")
                case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if (
                    called in calls or (called == "print" and name not in prints)
                ):
                    wrong.append(f"{name} calls {called}")
                case ast.Constant(value=str(text)) if re.search(
                    r"\[/?(bold|dim|red|green|yellow|link)?\b[^\]]*\]\S*\[/", text
                ):
                    wrong.append(f"{name} has markup: {text}")
    assert wrong == []


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    """Story: somebody adds an error. The drawn tree must show it."""

    names = [
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, TopicproofError)
    ]
    assert [name for name in names if name not in (errors.__doc__ or "")] == []


def test_the_documents_name_every_fate_kind_fault_and_command() -> None:
    """Story: somebody looks a word up. Each has a row in the document of its audience."""
    from tests.test_cli import COMMANDS

    words = {
        "VERDICTS.md": [
            *(fate.value for fate in Fate),
            *(validator.NAME for validator in VALIDATORS),
        ],
        "RUNS.md": [f"{kind.name}@" for kind in KINDS],
        "COMMANDS.md": [*COMMANDS, *causes.CauseKind, *causes.Severity],
        "CLUSTERS.md": list(conditions.Kind),
    }
    for name, wanted in words.items():
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert [word for word in wanted if f"`{word}" not in text] == []


def test_the_readme_is_short_and_links_to_what_there_is() -> None:
    """Story: a newcomer reads the README to its end, and follows the links of every document."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1_200
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        assert [link for link in links if not (document.parent / link).exists()] == [], document


def test_images_and_pins_agree() -> None:
    """Story: a version is raised in one place. The compose file, the jars and the requirements must
    follow."""
    ivy, compose = (ROOT / "ivy.xml").read_text(), (ROOT / "docker-compose.yml").read_text()
    kafka = re.search(r'name="kafka_2\.13" rev="([^"]+)"', ivy)
    assert kafka is not None and f"apache/kafka:{kafka.group(1)}" in compose
    assert (
        f'name="kafka-tools" rev="{kafka.group(1)}"' in ivy
        and f'name="kafka-streams" rev="{kafka.group(1)}"' in ivy
    )
    spark = re.search(r'name="spark-sql-kafka-0-10_2\.13" rev="([^"]+)"', ivy)
    assert (
        spark is not None
        and f"pyspark[connect]=={spark.group(1)}" in (ROOT / "requirements.txt").read_text()
    )
    assert f'"pyspark[connect]=={spark.group(1)}"' in (ROOT / "pyproject.toml").read_text()
    version = re.search(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert version is not None and f"image: topicproof:{version.group(1)}" in compose


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
    ],
    ids=lambda command: " ".join(command),
)
def test_the_tools_agree(command: list[str]) -> None:
    """Story: linter, formatter, type checker and the Compose specification find nothing to
    report."""
    answer = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_pages_act_through_the_identity_of_the_session() -> None:
    """Story: somebody adds a page. It gets its history from the session, which knows who is there,
    and calls nothing that acts without asking for their role."""
    raw = {"request_stop", "forget", "create", "end", "zip_evidence", "copy_all", "abort"}
    wrong = []
    for path in (ROOT / "app").rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            history = called == "History" and path != ROOT / "app" / "session" / "access.py"
            # A transaction is meant, not a connection of asyncio.
            acts = called.rpartition(".")[2] in raw and not called.endswith("transport.abort")
            if history or acts:
                wrong.append(f"{path.relative_to(ROOT)} calls {called}")
    assert wrong == []


def names_of_tests(path: Path) -> list[str]:
    """Return the names of the tests in a file, or in all files below a folder."""
    files = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    return [
        node.name
        for file in files
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def mistakes(command: str) -> Iterator[str]:
    """Return what is wrong with a command `pytest PATH... -k "WORD or WORD"`."""
    places, _, expression = command.removeprefix("pytest ").partition(" -k ")
    paths = places.split()
    words = expression.strip('"').split(" or ") if expression else ["test_"]
    names = {path: names_of_tests(ROOT / path) for path in paths}
    for path in paths:
        if not any(word in name for word in words for name in names[path]):
            yield f"`{command}` selects no test of {path}"
    for word in words:
        if not any(word in name for path in paths for name in names[path]):
            yield f"`{command}` selects no test by {word}"
        if expression and word in places:
            yield f"`{command}` selects a whole file by {word}, which is in its name"


def test_the_commands_of_documents_select_tests() -> None:
    """Story: a test is renamed, and a document goes on naming it. pytest would run what else it
    selects, and look fine. So each file and each word behind -k must select a test."""
    commands = [
        command
        for document in sorted((ROOT / "docs").glob("*.md"))
        for command in re.findall(
            r"`(pytest [^`]+)`", " ".join(document.read_text(encoding="utf-8").split())
        )
    ]
    assert len(commands) > 100
    assert [mistake for command in commands for mistake in mistakes(command)] == []


def test_commands_share_the_options_of_their_cluster() -> None:
    """Story: somebody changes how a cluster is named on the command line. That is in one place."""
    commands = sorted((ROOT / "backend" / "commands").glob("*.py"))
    names = [
        f"{path.name}: {match}"
        for path in commands
        for match in re.findall(r"\w+: (?:Bootstrap|ClusterName|Config)\b", path.read_text("utf-8"))
    ]
    assert names == [
        "shared_options.py: bootstrap: Bootstrap",
        "shared_options.py: config: Config",
        "shared_options.py: cluster: ClusterName",
    ]


def code_lines(path: Path) -> int:
    """Count the lines that are not empty, a comment or a docstring at the head of a block."""
    text = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in docstrings
        for number, line in enumerate(text.splitlines(), 1)
    )


def test_a_file_that_is_named_exists() -> None:
    """Story: a stranger follows a docstring or a document to another file, which was renamed."""
    path = re.compile(r"\b(?:app|backend|validators|tests|benchmarks)/[\w/]+\.(?:py|js)\b")
    named = {
        (str(document.relative_to(ROOT)), name)
        for document in (*SOURCES, *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
        if document.name != "CHANGELOG.md"
        for name in path.findall(document.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []


ONE_EACH = ("validators/kinds/", "backend/history/migrations/")


def test_a_file_is_worth_opening_and_has_a_name_of_its_own() -> None:
    """Story: a stranger opens files one after the other. At most 15 have 30 lines of code or
    fewer, and at most 15 names are used twice. A kind is a file, and so is a migration, however
    short it is."""
    files = [path for path in SOURCES if path.name != "__init__.py"]
    short = sorted(str(path.relative_to(ROOT)) for path in files if code_lines(path) <= 30)
    tiny = [name for name in short if not name.startswith(ONE_EACH)]
    assert len(tiny) <= 15, tiny
    twice = {name for name, count in Counter(path.name for path in files).items() if count > 1}
    assert len(twice) <= 15, twice


EDITS = {"backend/evidence/private_copy.py"}
"""A private copy of evidence lies elsewhere, and errors name the folder that was received."""


def test_no_layer_edits_the_sentence_of_another() -> None:
    """Story: somebody rewords an error. No caller cuts it to pieces or replaces words in it: who
    needs a part of it gets that part from the error."""
    wrong = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in SOURCES
        if str(path.relative_to(ROOT)) not in EDITS
        for handler in ast.walk(parsed(path))
        if isinstance(handler, ast.ExceptHandler) and handler.name
        for call in ast.walk(handler)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"replace", "removeprefix", "removesuffix"}
        and handler.name in names_in(call.func.value)
    ]
    messages = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCES
        for line in path.read_text(encoding="utf-8").splitlines()
        if '"Value error' in line
    ]
    assert wrong + messages == []


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
