"""What the box that leads everywhere offers."""

from __future__ import annotations

from topicproof.app.shell.jump import Target, shared_room
from topicproof.app.shell.places import TOPICS


def test_made_up_groups_hide_no_run() -> None:
    """Story: somebody commits offsets for 30,000 groups with long names, and makes many topics.
    Every run and contract is still in the box, and each kind has room."""
    counts = {"run": 200, "contract": 50, "topic": 9_000, "group": 30_000}
    targets = [Target(kind, str(n), TOPICS) for kind, count in counts.items() for n in range(count)]
    shown = [target.kind for target in shared_room(targets, 10_000)]
    assert {kind: shown.count(kind) for kind in dict.fromkeys(shown)} == {
        "run": 200,
        "contract": 50,
        "topic": 4_875,
        "group": 4_875,
    }
    assert shared_room(targets[:300], 10_000) == targets[:300]
    labels = [Target("group", "\x1b" * 5_000 + end, TOPICS).label for end in "ab"]
    assert labels[0] != labels[1]
    assert all(len(label.removeprefix("group · ")) == 200 for label in labels)
