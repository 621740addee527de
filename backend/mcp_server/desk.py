"""What the tools of a server share, and what each of them asks first: who is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import not_

from topicproof.backend.address import Address
from topicproof.backend.errors import NotPermitted, TopicproofError
from topicproof.backend.history.audit import allow
from topicproof.backend.history.evidence_export import hidden_of
from topicproof.backend.history.store import History, Run
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action, Identity, allows
from topicproof.backend.trust.login import configured_login
from topicproof.backend.trust.masking import Field
from topicproof.backend.waiting import ask_until

STOP_WAIT_S = 60.0
"""How long a check that was started here may take to stop."""


@dataclass(frozen=True)
class Desk:
    """One cluster and one history, for whoever asks."""

    settings: Settings
    address: Address
    shared_history: History
    """Without a person: `history` has the one who asks."""
    person: Callable[[], Identity]
    """Returns who asks now. Raises NotPermitted, SetupError, UsageError."""
    shows_payloads: bool
    """Whether records are shown at all."""
    checks: list[str] = field(default_factory=list)
    """Checks that were started here and have not been seen to end."""

    def history(self) -> History:
        """Return the history for who asks. Raises as `person`."""
        return self.shared_history.acted_on_by(self.person())

    def allow_look(self, what: str) -> Identity:
        """Note that somebody looks at payloads. Returns who. Raises NotPermitted, EvidenceError."""
        history = self.history()
        allow(history, Action.LOOK, what)
        return history.by

    def hidden(self, by: Identity, *topics: str) -> tuple[Field, ...]:
        """Return what a person does not see of these topics, by the rules of the login."""
        login = configured_login(self.settings)
        return () if login is None else login.hidden(by, *topics)

    def require_unmasked(self, by: Identity, *topics: str) -> None:
        """Raises NotPermitted if parts of the topics are masked for this person."""
        if self.hidden(by, *topics):
            raise NotPermitted(
                f"Parts of the payloads of {', '.join(topics)} are masked for your role. A draft"
                " depends on whole payloads."
            )

    def shows_payloads_of(self, run: Run, by: Identity) -> bool:
        """Whether texts that may quote records of a run are for this person."""
        if not self.shows_payloads or not allows(by, Action.LOOK):
            return False
        login = configured_login(self.settings)
        try:
            return login is None or not hidden_of(login, self.settings, by, run)
        except TopicproofError:
            return False

    def stop_checks(self, say: Callable[[str], None]) -> None:
        """Stop the checks that were started here, and wait for them."""
        history = self.shared_history
        try:
            going = [run_id for run_id in self.checks if history.get(run_id).alive]
            for run_id in going:
                history.request_stop(run_id)
                say(f"stopping {run_id}")
            ask_until(lambda: any(history.get(run_id).alive for run_id in going), not_, STOP_WAIT_S)
        except TopicproofError as error:
            say(f"A check may go on: {error}")
