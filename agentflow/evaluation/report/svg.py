"""Drawings as SVG that stands inside an HTML page: its colours follow the page, and nothing is loaded."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT = "#010203", "#010204"
SERIES = tuple(f"#0102{shade:02x}" for shade in range(0x10, 0x16))
"""Stand-ins that matplotlib draws with; `inline` puts the page's own colours in their place."""
MARKERS = "osD^vPX<>"

_LIGHT = ("#0072b2", "#c65300", "#007d5b", "#a8447f", "#7a5c00", "#56606b")
_COLOURS = {
    INK: "currentColor",
    FAINT: "var(--faint, #c8ccd1)",
    **{stand_in: f"var(--s{n}, {shade})" for n, (stand_in, shade) in enumerate(zip(SERIES, _LIGHT, strict=True), 1)},
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "agentflow",
    "text.parse_math": False,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "hatch.color": INK,
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """A figure of this size in inches, drawn without a display and in the page's style."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font has it, or the reader's
        yield Figure(figsize=(width, height), layout="constrained")


def inline(figure: Figure, key: str, title: str, alt: str) -> str:
    """The figure as an `<svg>` element with a title and a description; ids are made unique by `key`.

    Call it inside `canvas`.
    """
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'xlink:href="#', f'href="#{key}-', text)
    text = re.sub(r"url\(#", f"url(#{key}-", text)
    text = re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    box = re.search(r'viewBox="([^"]+)"', text)
    head = f'<svg viewBox="{box.group(1) if box else ""}" role="img" aria-labelledby="{key}-title {key}-desc">'
    words = f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-desc">{escape(alt)}</desc>'
    return head + words + text[text.index(">") + 1 :].strip()
