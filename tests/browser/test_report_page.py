"""The page of an evidence folder in a real Chromium that has no network."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pyspark.sql import SparkSession

from tests.backend.evidence.evidence import judged
from tests.validators.history import history
from topicproof.validators.report import Report


@pytest.fixture(scope="module")
def evidence(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("page") / "evidence"
    made = history("0 0 1 C 3 C 4 A 4 5 C", "1.0 1.1 C 1.2 A", inputs=[6, 3])
    return folder, judged(spark, folder, made, run="</script><script>alert(1)</script>")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_it_opens_without_a_network(
    scheme: str, width: int, browser: Browser, evidence: tuple[Path, Report], artifacts: Path
) -> None:
    """Story: somebody opens the attachment on a train. The charts are drawn, nothing is requested
    from any server, no script fails, a hostile name stays text, and the page is no wider than the
    window."""
    folder, report = evidence
    context = browser.new_context(
        offline=True,
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda message: wrong.append(message.text) if message.type == "error" else None
    )
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.goto((folder / "report.html").as_uri())
    expect(page.locator("#fates .barlayer path").first).to_be_visible()
    expect(page.locator("#findings .barlayer path").first).to_be_visible()
    expect(page.locator("#places .points path").first).to_be_visible()
    expect(page.locator(".verdict")).to_contain_text(report.why)
    expect(page.locator("header")).to_contain_text("</script>")
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.screenshot(path=artifacts / f"report-{scheme}-{width}.png", full_page=True)
    assert wrong == [] and wide <= 0
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()
