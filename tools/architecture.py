"""Draws docs/img/architecture.svg: the packages of rbegir and which imports which, read from the source.

    python tools/architecture.py        run it after an import between packages was added or removed

Packages stand in rows; imports point downwards. Only direct neighbours are joined: an arrow is left out where
a longer path of arrows says the same. An import that points upwards breaks the rule and is drawn in red.
Every package may import `errors`, so those arrows are left out. A test compares the picture with the source.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "img" / "architecture.svg"
SOURCE = ROOT / "src" / "rbegir"
OUTSIDE = {"__init__", "__main__", "moved"}  # the public names, the entry point, and aliases of old paths
EVERYWHERE = "errors"
ROWS: tuple[dict[str, str], ...] = (
    {"cli": "the commands"},
    {"lab": "benchmarks, planner, tables"},
    {"cluster": "one index on many machines"},
    {
        "adapters": "LangChain, LlamaIndex",
        "serve": "the HTTP service",
        "client": "its Python client",
        "training": "learning from pairs",
    },
    {
        "wire": "what service and client share",
        "index": "the durable index",
        "evaluate": "how good a model is",
    },
    {"search": "exact top k", "encode": "text or vector → code"},
    {"codes": "planes, layout, score", "read": "files → rows", "base": "disk, masks"},
    {"errors": "every error", "_native": "C++ kernels"},
)
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 190, 48, 30, 44, 16
STYLE = (
    "text{font:13px system-ui,sans-serif;text-anchor:middle;fill:#222}.name{font-weight:600}"
    ".about{font-size:11px;fill:#555}rect{fill:#eef2fb;stroke:#5267a8;rx:6}"
    "path{fill:none;stroke:#7d8bb5;stroke-width:1.3}.up{stroke:#c62828}"
)

Graph = dict[str, set[str]]


class Box(NamedTuple):
    """Where a package is drawn: the middle of its top edge."""

    x: float
    y: float


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(tree: ast.AST) -> set[str]:
    """The packages of rbegir that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "rbegir":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rbegir.")}
    return found


def imports(source: Path = SOURCE) -> Graph:
    """Package → the packages that it imports."""
    files = sorted(source.rglob("*.py"))
    graph: Graph = {package_of(file): set() for file in files if package_of(file) not in OUTSIDE}
    for file in files:
        package = package_of(file)
        if package in graph:
            graph[package] |= (imported(ast.parse(file.read_text())) & graph.keys()) - {package}
    placed = {name for row in ROWS for name in row}
    if placed != set(graph):
        raise SystemExit(f"error: ROWS and the source differ in {sorted(placed ^ set(graph))}")
    return graph


def neighbours(graph: Graph) -> list[tuple[str, str]]:
    """Imports that are not implied by a longer path of downward imports, and all that point upwards."""
    level = {name: number for number, row in enumerate(ROWS) for name in row}
    down = {a: {b for b in bs if level[b] > level[a] and b != EVERYWHERE} for a, bs in graph.items()}

    def below(name: str) -> set[str]:
        return down[name] | {far for near in down[name] for far in below(near)}

    direct = {a: bs - {far for near in bs for far in below(near)} for a, bs in down.items()}
    upward = {a: {b for b in bs if level[b] <= level[a]} for a, bs in graph.items()}
    return sorted((a, b) for a in graph for b in direct[a] | upward[a])


def places() -> dict[str, Box]:
    widest = max(len(row) for row in ROWS)
    whole = widest * WIDTH + (widest - 1) * ACROSS
    found = {}
    for number, row in enumerate(ROWS):
        used = len(row) * WIDTH + (len(row) - 1) * ACROSS
        for column, name in enumerate(row):
            x = MARGIN + (whole - used) / 2 + column * (WIDTH + ACROSS) + WIDTH / 2
            found[name] = Box(x, MARGIN + number * (HEIGHT + DOWN))
    return found


def arrow(start: Box, end: Box) -> str:
    if end.y > start.y:
        top, bottom = start.y + HEIGHT, end.y - 5
        middle = (top + bottom) / 2
        return (
            f'<path d="M{start.x:g} {top:g} C{start.x:g} {middle:g} {end.x:g} {middle:g} {end.x:g} {bottom:g}" '
            'marker-end="url(#down)"/>'
        )
    return f'<path class="up" d="M{start.x:g} {start.y:g} L{end.x:g} {end.y + HEIGHT:g}"/>'


def picture(graph: Graph) -> str:
    boxes = places()
    width = 2 * MARGIN + max(box.x for box in boxes.values()) - min(box.x for box in boxes.values()) + WIDTH
    height = 2 * MARGIN + len(ROWS) * (HEIGHT + DOWN) - DOWN
    told = "; ".join(
        f"{name} imports {', '.join(sorted(graph[name])) or 'nothing'}" for name in sorted(graph)
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        "<title>The packages of rbegir and their imports</title>",
        f"<desc>{escape(told)}</desc>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="down" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" style="fill:#7d8bb5;stroke:none"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" style="fill:#fff;stroke:none"/>',
        *(arrow(boxes[a], boxes[b]) for a, b in neighbours(graph)),
    ]
    for row in ROWS:
        for name, about in row.items():
            x, y = boxes[name]
            lines += [
                f'<rect x="{x - WIDTH / 2:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}"/>',
                f'<text class="name" x="{x:g}" y="{y + 20:g}">{name}</text>',
                f'<text class="about" x="{x:g}" y="{y + 37:g}">{escape(about)}</text>',
            ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(imports()))
