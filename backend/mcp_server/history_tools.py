"""Tools of the history: kept contracts, checks by them, verdicts.

The docstring of a tool is what an agent reads of it.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import anyio
import anyio.to_thread
from pydantic import Field

from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.contracts.sink_table import require_below
from topicproof.backend.evidence.copy import without_headers, without_values
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.history.audit import require_noted
from topicproof.backend.history.kept_contracts import KeptContract, contracts, find
from topicproof.backend.history.run_reports import read_run_report
from topicproof.backend.history.store import Run
from topicproof.backend.mcp_server.cluster_tools import Cursor, Limit
from topicproof.backend.mcp_server.desk import Desk
from topicproof.backend.mcp_server.results import ROWS, Document, Lines, Page, document_of, page_of
from topicproof.backend.runs.launch import start_kept_check
from topicproof.backend.trust.identity import Action
from topicproof.validators.shell_words import shell_word

WAIT_S, WAIT_S_MAX = 50.0, 600.0
"""How long `run_check` waits for a verdict. Clients commonly give up after 60 s."""
LOOK_EVERY_S = 0.3
RUNS_MAX = 10_000

RunId = Annotated[str, Field(description="The run's name, as runs and run_check give it.")]


class HistoryTools:
    """Each public method is a tool."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def contracts(self, limit: Limit = ROWS, cursor: Cursor = None) -> Page:
        """List the kept contracts by name: the newest version of each, as YAML (text)."""
        rows = [_contract_row(each) for each in contracts(self.desk.history())]
        return page_of(rows, limit, cursor)

    async def run_check(
        self,
        contract: Annotated[
            str,
            Field(description="The name of a kept contract, such as orders, or orders@3."),
        ],
        wait_s: Annotated[
            float,
            Field(
                description="Wait so many seconds for the verdict, then answer without it.",
                ge=0,
                le=WAIT_S_MAX,
            ),
        ] = WAIT_S,
    ) -> Document:
        """Judge the topics of a kept contract, and answer as verdict does. It reads the topics, and
        writes nothing to the cluster; the verdict and its evidence are kept in the history. A large
        check takes minutes: if the state is not done, stopped or failed, ask verdict again. It
        needs the role operator, and the audit log notes it."""
        run_id = await anyio.to_thread.run_sync(self._start, contract)
        deadline = time.monotonic() + wait_s
        while True:
            run = await anyio.to_thread.run_sync(self.desk.shared_history.get, run_id)
            if not run.alive or time.monotonic() > deadline:
                return await anyio.to_thread.run_sync(self.verdict, run_id)
            await anyio.sleep(LOOK_EVERY_S)

    def verdict(self, run: RunId) -> Document:
        """Read how far a run or check has come, and its verdict: HOLDS, VIOLATED or UNKNOWN, with
        one sentence that says why, and every finding. Examples name partitions and offsets, never
        values of records."""
        history = self.desk.history()
        entry = history.get(run)
        folder = entry.folder(self.desk.settings)
        report = read_run_report(entry, folder) if (folder / REPORT).exists() else None
        whole = None if report is None else without_headers(without_values(report)).to_json()
        return document_of(
            {
                **self._run_row(entry),
                "error": self._error(entry),
                "look_closer": f"topicproof show {shell_word(entry.id)}",
                "report": None if whole is None else json.loads(whole),
            }
        )

    def runs(self, limit: Limit = ROWS, cursor: Cursor = None) -> Page:
        """List runs and checks, newest first: state, verdict and the sentence that says why. Times
        are UTC."""
        rows = [self._run_row(run) for run in self.desk.history().list(RUNS_MAX)]
        return page_of(rows, limit, cursor)

    def _start(self, label: str) -> str:
        history = self.desk.history()
        # Before it is looked for: what there is, is for those who may check.
        require_noted(history, Action.CHECK, label)
        contract = find(history, label)
        table = make_contract(parse_fields(contract.text, contract.label)).table
        if table is not None:
            require_below(table, history.settings.tables, is_restricted=True)
        run_id = start_kept_check(history, contract)
        self.desk.checks.append(run_id)
        return run_id

    def _run_row(self, run: Run) -> dict[str, Any]:
        plan, facts = run.plan, run.facts
        return {
            "run": run.id,
            "kind": run.kind,
            "state": str(run.state),
            "is_alive": run.alive,
            "created_at": run.created_at,
            "ended_at": run.ended_at,
            "verdict": run.verdict,
            "why": run.why,
            "source": facts.source,
            "sink": facts.sink,
            "contract": plan.get("contract"),
            "contract_version": plan.get("contract_version"),
        }

    def _error(self, run: Run) -> str | None:
        """Return why a run failed, to somebody who may see what it may quote."""
        if run.error is None or self.desk.shows_payloads_of(run, self.desk.person()):
            return run.error
        return (
            "It has failed. The error may quote a record, so it is not shown here. It is printed"
            f" by: topicproof show {shell_word(run.id)}"
        )


def _contract_row(contract: KeptContract) -> Document:
    return {
        "name": contract.name,
        "version": contract.version,
        "kept_at": contract.kept_at,
        "text": Lines.of(contract.text),
    }
