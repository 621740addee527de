"""Nothing that others wrote is read as Markdown, on any page: each text of a report, the history
or a plan passes through `plain` on its way to a label, a title or a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.app.conftest import OpenPage
from tests.app.test_history_page import HELD
from topicproof.app import wording
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.history.run_state import Facts, RunResults, StageVerdict
from topicproof.backend.history.store import History, State
from topicproof.backend.settings import ROOT, read_settings
from topicproof.validators.finding import Example, Finding, Outcome

BADGE = ":green-badge[:material/verified: accepted] by **grace** [x](https://evil.example)"
READERS = {
    *("markdown", "caption", "info", "warning", "error", "success", "title", "header"),
    *("subheader", "button", "expander", "page_link", "download_button", "form_submit_button"),
    *("toggle", "checkbox", "radio", "selectbox", "multiselect", "segmented_control", "pills"),
    *("text_input", "text_area", "number_input", "slider", "select_slider", "date_input"),
    *("metric", "popover", "tabs", "status", "toast", "spinner", "update", "file_uploader"),
}
"""Methods of Streamlit that read their first argument as Markdown, and `READ` of the others."""
READ = {"label", "title", "help", "body"}
CHOICES = {"radio", "segmented_control", "pills"}
"""They read what `format_func` returns, too. Lists to choose from show it as it is."""
ESCAPES = {"plain", "kind_label", "code"}
PASSING = {"join", "get", "str", "capitalize", "upper", "replace", "strip", "map", "partition"}
"""Functions whose result has the text of their arguments."""
OF_OTHERS = {
    *("id", "run_id", "kind", "stage", "topic", "source", "sink", "cluster", "bootstrap", "why"),
    *("error", "comment", "explained_by", "signer", "note", "launched_by", "subject", "text"),
}
"""Attributes and keys of reports, runs, sign-offs and plans that hold anybody's text."""


@dataclass(frozen=True)
class Scope:
    """The functions that a text may come from, and what the names of one of them hold."""

    functions: dict[str, ast.FunctionDef]
    values: dict[str, list[ast.expr]]
    visited: frozenset[str] = frozenset()
    choices: frozenset[str] = frozenset()
    """Names for whatever may be chosen in a list."""


def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def values_in(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
                values.setdefault(target.id, []).append(node.value)
    return values


def unescaped(node: ast.AST, scope: Scope) -> Iterator[str]:
    """Yields the texts of others that reach this expression as they are."""
    match node:
        case ast.Call(func=function):
            name = ast.unparse(function).split(".")[-1]
            if name in scope.functions and name not in ESCAPES | scope.visited:
                yield from returned(scope.functions[name], scope)
            elif name in PASSING:
                for child in ast.iter_child_nodes(node):
                    yield from unescaped(child, scope)
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            if name in OF_OTHERS:
                yield ast.unparse(node)
        case ast.Subscript(value=mapping):
            yield from unescaped(mapping, scope)
        case ast.Name(id=name):
            if name in scope.choices:
                yield name
            elif name not in scope.visited:
                inner = replace(scope, visited=scope.visited | {name})
                for value in scope.values.get(name, ()):
                    yield from unescaped(value, inner)
                if name in scope.functions:
                    yield from returned(scope.functions[name], inner)
        case ast.IfExp(body=body, orelse=otherwise):
            yield from unescaped(body, scope)
            yield from unescaped(otherwise, scope)
        case ast.Compare() | ast.comprehension():
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from unescaped(child, scope)


def returned(function: ast.FunctionDef, scope: Scope) -> Iterator[str]:
    visited = scope.visited | {function.name}
    values = scope.values | values_in(function)
    inner = replace(scope, values=values, visited=visited)
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from unescaped(node.value, inner)


def read_as_markdown(call: ast.Call) -> Iterator[ast.expr]:
    if isinstance(call.func, ast.Attribute) and call.func.attr in READERS:
        yield from call.args[:1]
        yield from (word.value for word in call.keywords if word.arg in READ)


def raw_choices(call: ast.Call, scope: Scope) -> Iterator[str]:
    """Yields what a list of choices, which Streamlit reads as Markdown, shows of a choice."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in CHOICES:
        return
    shows = next((word.value for word in call.keywords if word.arg == "format_func"), None)
    match shows:
        case ast.Lambda(args=arguments, body=body):
            names = frozenset(each.arg for each in arguments.args)
            yield from unescaped(body, replace(scope, choices=names))
        case ast.Name(id=name):
            function = scope.functions[name]
            names = frozenset(each.arg for each in function.args.args)
            yield from returned(function, replace(scope, choices=names))
        case None:
            yield from unescaped(call.args[1], scope)


def test_pages_escape_what_others_wrote() -> None:
    """Story: somebody shows one more text of a report, a run or a sign-off on any page."""
    raw = set()
    words = functions_of(ROOT / "app" / "wording.py")
    for path in sorted((ROOT / "app").rglob("*.py")):
        functions = words | functions_of(path)
        for function in functions_of(path).values():
            scope = Scope(functions, values_in(function))
            for call in ast.walk(function):
                if isinstance(call, ast.Call):
                    place = f"{path.relative_to(ROOT)}:{call.lineno}"
                    for argument in read_as_markdown(call):
                        raw |= {f"{place} {text}" for text in unescaped(argument, scope)}
                    raw |= {f"{place} {text}" for text in raw_choices(call, scope)}
    assert sorted(raw) == []


@pytest.mark.usefixtures("empty_home")
def test_a_report_and_a_history_sign_nothing(open_page: OpenPage) -> None:
    """Story: who can write a run's folder and the history calls a kind of finding and a stage like
    the badge of an accepted verdict, with a link. The page Verdict shows the letters."""
    history = History(read_settings())
    run = history.create("check", "check", {})
    stages = {BADGE: StageVerdict(Outcome.HOLDS, "ok")}
    results = RunResults(verdicts=stages)
    history.remember(run.id, Facts(source="numbers", sink="squares", results=results))
    history.end(run.id, State.DONE, Outcome.HOLDS, "all is well")
    allowed = (Example(0, 1, None, None, "an example"),)
    forged = (
        Finding(BADGE, Outcome.VIOLATED, 2, 1, BADGE, (), "bad"),
        Finding(f"{BADGE} {BADGE}", Outcome.HOLDS, 1, 1, None, allowed, "good"),
    )
    report = replace(HELD, run=run.id, findings=(*HELD.findings, *forged))
    folder = run.folder(history.settings)
    folder.mkdir(parents=True)
    (folder / REPORT).write_text(report.to_json())
    app = open_page("verdict", run=run.id)
    shown = [
        *(str(each.value) for each in app.markdown),
        *(each.label for each in app.expander),
        *(option.content for group in app.get("button_group") for option in group.proto.options),
    ]
    forgeries = [text for text in shown if "evil" in text]
    assert not app.exception and len(forgeries) >= 3
    for text in forgeries:
        rest = text.replace(wording.plain(BADGE), "")
        assert rest != text and "verified" not in rest and "](" not in rest
