"""The pages, in the order of the navigation. The first one is the start page, at the root."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A page. Its title determines its file, below `app/`, and its URL."""

    title: str
    icon: str

    @property
    def path(self) -> str:
        return self.title.lower()

    @property
    def file(self) -> str:
        return f"views/{self.path}.py"


PAGES = (
    Entry("Home", ":material/home:"),
    Entry("Run", ":material/play_circle:"),
    Entry("Demos", ":material/theater_comedy:"),
    Entry("Compare", ":material/compare:"),
    Entry("Transactions", ":material/timeline:"),
    Entry("Topics", ":material/topic:"),
    Entry("Check", ":material/fact_check:"),
    Entry("Verdict", ":material/gavel:"),
    Entry("Matrix", ":material/grid_on:"),
    Entry("History", ":material/history:"),
)
