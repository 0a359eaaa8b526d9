"""Horizontal bars as plain SVG, the same text on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, LEFT, LINE = 800, 330, 20
LONGEST = WIDTH - LEFT - 70
OURS, THEIRS = "#2a6f97", "#b8c4cc"


class Bar(NamedTuple):
    label: str
    value: float
    half: float | None  # half of the interval
    ours: bool


def svg(blocks: Mapping[str, Iterable[Bar]], note: str) -> str:
    """Blocks of bars by title, all to one scale, and a note below them."""
    shown = {title: list(bars) for title, bars in blocks.items()}
    scale = LONGEST / max(bar.value for bars in shown.values() for bar in bars)
    parts, y = [], 4
    for title, bars in shown.items():
        parts.append(f'<text x="8" y="{y + 16}" font-size="15">{escape(title)}</text>')
        for label, value, half, ours in bars:
            y += LINE
            end, middle = LEFT + value * scale, y + 13
            parts += [
                f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(label)}</text>',
                f'<rect x="{LEFT}" y="{y + 6}" width="{end - LEFT:.1f}" height="14" fill="{OURS if ours else THEIRS}"/>',
                f'<text x="{end + (half or 0) * scale + 8:.1f}" y="{y + 17}">{value:.3f}</text>',
            ]
            if half is not None:
                ends = f'x1="{end - half * scale:.1f}" x2="{end + half * scale:.1f}"'
                parts.append(f'<line {ends} y1="{middle}" y2="{middle}" stroke="#222222"/>')
        y += LINE + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + LINE}" '
    head += 'font-family="sans-serif" font-size="12" fill="#222222">'
    parts.append(f'<text x="8" y="{y + 8}" fill="#555555">{escape(note)}</text>')
    return "\n".join([head, f'<rect width="{WIDTH}" height="{y + LINE}" fill="white"/>', *parts, "</svg>\n"])
