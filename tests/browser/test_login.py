"""A team shares a dashboard behind a real Keycloak: one story, because Keycloak takes its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue

import httpx
import pytest
import yaml
from playwright.sync_api import Browser, BrowserContext, Page, expect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.backend.kafka.test_secured import showing
from tests.backend.mcp_server.agent import COMMAND, over_http
from tests.browser.conftest import PAGE_MS, settled
from tests.conftest import wait_until
from tests.files import files_with
from tests.keycloak import (
    CLIENT,
    CLIENT_SECRET,
    DEVICE_CLIENT,
    PASSWORD,
    Keycloak,
    keycloak,
    subject,
)
from tests.ports import free_ports
from tests.test_cli import call
from topicproof.app.shell.entrance import COOKIE
from topicproof.backend.errors import NotPermitted
from topicproof.backend.history.audit import audit_entries, broken_audit
from topicproof.backend.history.signoff import signoffs
from topicproof.backend.history.store import History
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.trust import device
from topicproof.backend.trust.acting import acting
from topicproof.backend.trust.identity import Action, How, Identity, Role

RUN_MS = 300_000
PATHS = (
    "/",
    "/verdict?run=any",
    "/topics",
    "/_stcore/health",
    "/_stcore/metrics",
    "/_stcore/host-config",
    "/_stcore/script-health-check",
    "/media/any.zip",
    "/_stcore/upload_file/a/b",
    "/component/a/b.js",
    "/static/js/any.js",
    "/app/static/any",
    "/favicon.png",
)


@dataclass(frozen=True)
class Team:
    """A dashboard with a login, and its provider."""

    address: str
    settings: Settings
    provider: Keycloak


@pytest.fixture(scope="module")
def team(
    settings: Settings, cluster: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Team]:
    """A dashboard of the session's home, with a login and with four eyes."""
    assert cluster.bootstrap
    folder = tmp_path_factory.mktemp("login")
    (port,) = free_ports(1)
    with keycloak(settings, tmp_path_factory.mktemp("keycloak"), port) as provider:
        secret, login = folder / "client-secret.txt", folder / "login.yaml"
        secret.write_text(CLIENT_SECRET)
        secret.chmod(0o600)
        fields = provider.login_fields(f"http://127.0.0.1:{port}", secret)
        login.write_text(yaml.safe_dump(fields))
        guarded = settings.model_copy(update={"login": login, "four_eyes": True})
        with dashboard(guarded, port) as address:
            yield Team(address, guarded, provider)


def signed_in(browser: Browser, team: Team, name: str, path: str) -> Page:
    """Somebody's own browser, in which they have signed in on the way to a page."""
    page = browser.new_context().new_page()
    page.set_default_timeout(PAGE_MS)
    page.goto(f"{team.address}{path}")
    page.get_by_role("link", name="Sign in").click()
    page.locator("#username").fill(name)
    page.locator("#password").fill(PASSWORD)
    page.locator("#kc-login").click()
    return page


def decide(page: Page, decision: str) -> None:
    """Chooses a decision and presses Sign."""
    settled(page)
    page.get_by_text(decision, exact=True).click()
    settled(page)
    page.get_by_role("button", name="Sign", exact=True).click()


def confirmed(context: BrowserContext, team: Team) -> Identity:
    """Signs in on the command line, and confirms the code in a browser where somebody is."""
    asked: Queue[device.DeviceCode] = Queue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(device.sign_in, team.settings, asked.put)
        page = context.new_page()
        page.goto(asked.get(timeout=PAGE_MS / 1000).address)
        page.get_by_role("button", name="Yes").click()
        expect(page.get_by_text("Device Login Successful")).to_be_visible()
        return waiting.result()


def test_a_team_shares_a_dashboard(
    browser: Browser,
    team: Team,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Story: a stranger is refused everywhere. Ada is a viewer: she sees, and what she presses is
    refused by the backend. Grace, an operator, launches and cannot sign, neither in her browser nor
    by the command line. Emmy may do everything but accept what she launched. Kurt signs. Each of
    this is in the audit log, and no secret of the login is anywhere."""
    with showing(CLIENT_SECRET) as shown:
        strangers_get_nothing(team)
        viewers_change_nothing(browser, team)
        run = operators_launch_and_do_not_sign(browser, team, monkeypatch)
        somebody_else_signs(browser, team, run)
    history = History(team.settings, Identity("", "", "", frozenset(), How.NOBODY))
    entries = audit_entries(history)
    assert broken_audit(entries) is None
    noted = [
        (one.by.name, one.action, one.allowed)
        for one in entries
        if one.by.issuer == team.provider.issuer and one.action in (Action.LAUNCH, Action.SIGN)
    ]
    assert noted == [
        ("Ada Lovelace", Action.LAUNCH, False),
        ("Grace Hopper", Action.LAUNCH, True),
        ("Grace Hopper", Action.SIGN, False),
        ("Emmy Noether", Action.SIGN, False),
        ("Kurt Gödel", Action.SIGN, True),
    ]
    assert shown == set()
    output = "".join(capfd.readouterr())
    secrets = (CLIENT_SECRET, PASSWORD)
    files = files_with(team.settings.home, secrets)
    assert "history.db" in {one.name for one in files}
    assert [one for one, found in files.items() if found] == []
    assert not any(secret in output for secret in secrets)
    history.engine.dispose()


def strangers_get_nothing(team: Team) -> None:
    """Over the wire: pages, files, metrics, health, uploads, and the websocket."""
    for path in PATHS:
        for method in ("GET", "POST", "PUT", "HEAD", "OPTIONS"):
            answer = httpx.request(method, f"{team.address}{path}")
            assert (answer.status_code, len(answer.content) < 100) == (401, True), (method, path)
    stream = f"{team.address.replace('http', 'ws')}/_stcore/stream"
    for cookie in ("", f"{COOKIE}=forged"):
        with pytest.raises(InvalidStatus) as refused:
            connect(stream, additional_headers={"Cookie": cookie}, origin=Origin(team.address))
        assert refused.value.response.status_code == 403


def viewers_change_nothing(browser: Browser, team: Team) -> None:
    nobody = signed_in(browser, team, "alan", "/run")
    expect(nobody.get_by_text("Alan Turing is known, but has no role here")).to_be_visible()
    nobody.context.close()
    ada = signed_in(browser, team, "ada", "/run?plan_records=10")
    expect(ada.get_by_text("Ada Lovelace: viewer")).to_be_visible()
    ada.wait_for_url("**/run?plan_records=10")
    settled(ada)
    ada.get_by_role("button", name="Start the run").click()
    refused = "Ada Lovelace has the role viewer and may not launch a run."
    expect(ada.get_by_text(refused)).to_be_visible()
    ada.get_by_role("button", name="Sign out").click()
    expect(ada.get_by_role("link", name="Sign in")).to_be_visible()
    ada.context.close()


def operators_launch_and_do_not_sign(
    browser: Browser, team: Team, monkeypatch: pytest.MonkeyPatch
) -> str:
    grace = signed_in(browser, team, "grace", "/run?plan_records=10&plan_fault_transaction=0")
    settled(grace)
    grace.get_by_role("button", name="Start the run").click()
    grace.wait_for_url("**run=*", timeout=RUN_MS)
    run = grace.url.partition("run=")[2].partition("&")[0]
    history = History(team.settings)
    wait_until(lambda: not history.get(run).alive, RUN_MS / 1000, "the end of Grace's run")
    history.engine.dispose()
    grace.goto(f"{team.address}/verdict?run={run}")
    expect(grace.get_by_text("Your role does not allow you to sign.")).to_be_visible()
    by = confirmed(grace.context, team)
    assert (by.name, by.how) == ("Grace Hopper", How.DEVICE) and by.roles == {Role.OPERATOR}
    monkeypatch.setenv("TOPICPROOF_HOME", str(team.settings.home))
    monkeypatch.setenv("TOPICPROOF_LOGIN", str(team.settings.login))
    kept = team.settings.home / "trust" / device.KEPT
    assert kept.stat().st_mode & 0o777 == 0o600
    assert call("whoami") == 0 and acting(team.settings) == by
    assert call("signoff", run, "--decision", "reject") == 3
    assert call("logout") == 0 and not kept.exists() and not acting(team.settings).authenticated
    grace.context.close()
    return run


def somebody_else_signs(browser: Browser, team: Team, run: str) -> None:
    history = History(team.settings, Identity("", "", "", frozenset(), How.NOBODY))
    facts = history.get(run).facts
    (grace,) = facts.launched_by
    assert (grace.name, grace.subject) == ("Grace Hopper", subject("grace"))
    emmys = replace(grace, name="Emmy Noether", subject=subject("emmy"))
    history.remember(run, replace(facts, launched_by=(grace, emmys)))
    emmy = signed_in(browser, team, "emmy", f"/verdict?run={run}")
    decide(emmy, "Accept")
    expect(emmy.get_by_text("and Emmy Noether launched it. Somebody else must")).to_be_visible()
    emmy.context.close()
    assert signoffs(history, run) == []
    kurt = signed_in(browser, team, "kurt", f"/verdict?run={run}")
    # Before a verdict is accepted the judge tests itself, which other tests wait for.
    decide(kurt, "Reject")
    expect(kurt.get_by_text("Kurt Gödel (OpenID Connect").first).to_be_visible()
    kurt.context.close()
    (signed,) = signoffs(history, run)
    assert signed.identity is not None and signed.identity.subject == subject("kurt")
    history.engine.dispose()


def test_a_login_that_the_provider_no_longer_knows(team: Team) -> None:
    """Story: the kept login was revoked. Nothing is done in its name, and the way on is named."""
    path = team.settings.home / "trust" / device.KEPT
    device._keep(team.settings, {"issuer": team.provider.issuer, "refresh_token": "revoked"})
    with pytest.raises(NotPermitted, match=r"does not confirm your login.*topicproof login"):
        acting(team.settings)
    assert device.sign_out(team.settings, pytest.fail) and not path.exists()


def test_an_agent_can_do_no_more_than_the_person_whose_token_it_bears(
    team: Team, tmp_path: Path
) -> None:
    """Story: a team serves agents over HTTP. An agent with a viewer's token sees what is wrong, and
    is refused a check in the viewer's name, which the audit log has. A token for the dashboard, or
    of nobody, opens nothing."""
    report = tmp_path / "mcp.json"
    with subprocess.Popen(
        [sys.executable, *COMMAND, "--http", "0", "--json", str(report)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **team.settings.environment()},
    ) as process:
        try:
            assert process.stdout is not None and "Agents may ask at" in process.stdout.readline()
            address = json.loads(report.read_text())["address"]
            with over_http(address, team.provider.id_token("ada", DEVICE_CLIENT)) as agent:
                assert agent.ask("status")["total"] >= 0
                sentence = agent.refused("run_check", contract="orders")
                drafts = agent.refused("draft_contract", source="nowhere", sink="nothing")
            assert "Ada Lovelace has the role viewer and may not check topics" in sentence
            assert "no topic nowhere" in drafts
            history = History(team.settings)
            entries = [
                (entry.by.subject, entry.action, entry.what, entry.allowed)
                for entry in audit_entries(history)
            ]
            assert (subject("ada"), Action.CHECK, "orders", False) in entries
            history.engine.dispose()
            for token in (
                team.provider.id_token("grace", CLIENT),
                team.provider.id_token("alan", DEVICE_CLIENT),
                "none",
            ):
                answer = httpx.post(address, json={}, headers={"Authorization": f"Bearer {token}"})
                assert answer.status_code == 401
        finally:
            process.terminate()
        assert process.wait(60) == 0
