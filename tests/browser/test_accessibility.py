"""axe-core reads every page as a screen reader would, in both themes, and finds nothing serious."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.conftest import settled
from tests.runs import Finished

SERIOUS = {"serious", "critical"}
WIDTHS, HEIGHT = (820, 1280, 1920), 1000
CONTRAST_ALONE = {"runOnly": ["color-contrast"]}
IS_DARK = """() => {
    const app = document.querySelector('[data-testid="stApp"]');
    return app && getComputedStyle(app).colorScheme === 'dark';
}"""
HTML_SHOWN = 200
"""Characters of an element, which may be a whole table."""
PAGES = (
    *("", "run", "demos", "compare", "transactions", "topics", "check", "verdict", "watch"),
    *("matrix", "history", "all topics", "all groups", "all transactions"),
)


def violations(response: dict[str, Any]) -> list[str]:
    """Returns what is serious in axe's answer: for each element the rule, where the element is,
    what is wrong with it, and its HTML."""
    return [
        f"{violation['id']}: {violation['help']}, at {node['target']}:"
        f" {' '.join(node['failureSummary'].split())} {node['html'][:HTML_SHOWN]}"
        for violation in response["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


def test_every_page_is_narrow_enough_and_has_no_serious_violation(
    address: str, browser: Browser, finished: Finished, artifacts: Path
) -> None:
    """Story: somebody works by keyboard and screen reader, or on a poor projector: every page can
    be read in both themes. Others have a tablet, a laptop, a projector: no page shows an exception,
    and none is wider than its window."""
    run, sink = finished.run.id, finished.run.facts.sink
    places = {
        "": "",
        "run": f"run?run={run}",
        "demos": f"demos?story=clean&runs={run}",
        "check": f"check?source={finished.source}&sink={sink}",
        "verdict": f"verdict?run={run}",
        # With one record open beside the list.
        "topics": f"topics?topic={sink}&partition=0&offset=0&record=0",
        "all topics": "topics",
        "all transactions": "topics?view=all-transactions",
        "all groups": f"topics?view=all-groups&group={finished.group}",
    }
    window = browser.new_page(color_scheme="light")
    serious = []
    for page in PAGES:
        name = page or "start"
        window.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
        window.goto(f"{address}/{places.get(page, f'{page}?topic={sink}')}")
        expect(window.get_by_role("heading", level=1)).to_be_visible()
        if page in ("compare", "transactions"):
            expect(window.locator(".stPlotlyChart .main-svg").first).to_be_visible()
        for width in WIDTHS:
            window.set_viewport_size({"width": width, "height": HEIGHT})
            settled(window)
            window.screenshot(path=artifacts / f"{name}-light-{width}.png")
            wide = window.get_by_test_id("stMain").evaluate(
                "main => main.scrollWidth - main.clientWidth"
            )
            assert wide <= 0, (name, width)
        assert window.get_by_test_id("stException").count() == 0, name
        of_page = violations(Axe().run(window).response)
        window.emulate_media(color_scheme="dark")
        window.wait_for_function(IS_DARK)
        settled(window)
        # Nothing but the colours differs.
        of_page += violations(Axe().run(window, options=CONTRAST_ALONE).response)
        window.emulate_media(color_scheme="light")
        serious += [f"{name}: {violation}" for violation in of_page]
    window.close()
    assert not serious, "\n".join(serious)


def test_a_violation_would_be_found(browser: Browser) -> None:
    """Story: pale grey on white, and a picture nobody described: both are named."""
    window = browser.new_page()
    window.set_content(
        "<html lang=en><title>x</title><p style='color:#ccc'>pale</p><img src=data:,></html>"
    )
    serious = violations(Axe().run(window).response)
    window.close()
    assert [violation.partition(":")[0] for violation in serious] == ["color-contrast", "image-alt"]
    assert "<p style=" in serious[0] and "contrast of 1.6" in serious[0]
