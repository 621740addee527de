"""Starts the runs of a story."""

from __future__ import annotations

import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import open_history
from topicproof.app.stories import Story
from topicproof.backend.runs.launch import start_run
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.settings import Settings


def start_story(settings: Settings, story: Story) -> dict[str, str]:
    """Starts the story's runs, each in a process of its own. Returns the parameters of the page
    Demos that open it. Raises TopicproofError."""
    with st.status("Starting…") as status:
        runs = [
            start_run(
                open_history(settings),
                make_plan(dict(part.plan)),
                lambda line: status.update(label=wording.plain(line)),
            )
            for part in story.parts
        ]
    return {"story": story.name, "runs": ",".join(runs)}
