"""docs/FIELD.md keeps up with the list of reports, and with the tests that show them."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.field.pipelines import CASES
from tests.field.reports import PATH, REPORTS, TOGETHER, document
from topicproof.validators.kinds.catalogue import VALIDATORS


def test_the_table_of_reports_is_up_to_date() -> None:
    """Story: somebody adds a report, or words a sentence anew. docs/FIELD.md must show it:
    `make docs`."""
    assert PATH.read_text(encoding="utf-8") == document()


@pytest.mark.parametrize("report_id", REPORTS)
def test_every_report_is_shown_by_its_test(report_id: str) -> None:
    """Story: a test is renamed, or no longer demands the sentence of its report."""
    report = REPORTS[report_id]
    assert report.kind in {"", *(validator.NAME for validator in VALIDATORS)}
    if report.test == TOGETHER:
        assert report_id in {case.report for case in CASES}
    else:
        file, _, name = report.test.partition("::")
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        source = inspect.getsource(module)
        assert callable(getattr(module, name)) and f'"{report_id}"' in source
