"""Shared by the charts: colours, sizes, and the pointer at the item shown beside a chart.

Colours follow Okabe and Ito. A word, symbol or pattern accompanies each colour. Charts take frames
and return Plotly figures; they know neither Streamlit nor Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topicproof.validators.finding import Fate

FATE_COLOURS: Mapping[Fate, str] = {
    Fate.COMMITTED: "#0072B2",
    Fate.ABORTED: "#D55E00",
    Fate.PENDING: "#E69F00",
    Fate.MARKER: "#999999",
    Fate.GONE: "#D0D5DA",
    Fate.UNEXPLAINED: "#CC79A7",
}
RIGHT_PX = 8
"""Margin of the strip and the timeline."""


@dataclass(frozen=True)
class Pointer:
    """A position on a chart."""

    top_px: float
    left_px: int
    """Left margin of the plot within the figure; `right_px` is the right margin."""
    right_px: int
    share: float
    """Horizontal position, as a share of the plot's width."""
    size_px: int

    def html(self) -> str:
        """Draws a diamond there, over the chart that follows."""
        left = (
            f"calc({self.left_px}px + (100% - {self.left_px + self.right_px}px) * {self.share:.6f})"
        )
        return (
            '<div aria-hidden="true" style="position:relative;height:0"><div'
            f' style="position:absolute;z-index:1;pointer-events:none;top:{self.top_px:.1f}px;'
            f"left:{left};width:{self.size_px}px;height:{self.size_px}px;background:#FFFFFF;"
            "border:2.5px solid #111111;box-sizing:border-box;"
            'transform:translate(-50%,-50%) rotate(45deg)"></div></div>'
        )


NAME_CHARACTERS_MAX = 90


def names_px(names: Sequence[str]) -> int:
    """Returns the width of the longest name beside an axis, of at most half a chart."""
    return 18 + round(6.2 * min(NAME_CHARACTERS_MAX, max(len(name) for name in names)))


def colour_steps(colours: Sequence[str]) -> list[tuple[float, str]]:
    """Returns a colour scale with hard steps: each colour has the same share."""
    share = 1 / len(colours)
    return [
        pair
        for n, colour in enumerate(colours)
        for pair in ((n * share, colour), ((n + 1) * share, colour))
    ]
