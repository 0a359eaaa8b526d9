"""Writes the table of docs/vectors.md and its picture from benchmarks/results/accuracy-vectors-*.json.

python tools/vectors_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "vectors.md"
PICTURE = ROOT / "docs" / "img" / "recall.svg"
MARKS = ("<!-- results: written by tools/vectors_page.py -->\n", "<!-- end of results -->\n")
SETS = {"glove": "GloVe, 50-d", "clsm": "CLSM, 64-d", "minilm": "MiniLM, 384-d"}
NAMES = {
    "binarizer_thorough": "Binarizer, `moves=8n`",
    "binarizer": "Binarizer",
    "binarizer_3_planes": "Binarizer, 3-bit query",
    "binarizer_start": "Binarizer, `rounds=0`",
    "opq": "FAISS OPQ",
    "pq": "FAISS PQ",
    "rq": "FAISS residual quantiser",
    "lsq": "FAISS LSQ",
    "rabitq": "FAISS RaBitQ",
    "turbovec": "turbovec",
    "scalar": "rotation + scalar",
}
WIDTH, LINE, LEFT = 720, 18, 190


def load() -> dict[str, dict[str, Any]]:
    found = {}
    for name in SETS:
        path = ROOT / "benchmarks" / "results" / f"accuracy-vectors-{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def table(results: dict[str, dict[str, Any]]) -> str:
    head = ["recall@10 (bytes)", *(SETS[name] for name in results)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, title in NAMES.items():
        cells = []
        for result in results.values():
            rows = [row for row in result["summary"] if row["method"] == method]
            cells.append(f"{rows[0]['recall@10']['mean']:.3f} ({rows[0]['bytes']:g})" if rows else "")
        if any(cells):
            lines.append("| " + " | ".join([title, *cells]) + " |")
    sizes = "; ".join(
        f"{SETS[name]}: {r['vectors']['count']:,} vectors, {r['vectors']['queries']:,} queries, "
        f"{r['vectors']['train_rows']:,} rows to learn from, {r['seeds']} seed{'s' if r['seeds'] > 1 else ''}"
        for name, r in results.items()
    )
    return "\n".join(lines) + f"\n\n{sizes}.\n"


def picture(results: dict[str, dict[str, Any]]) -> str:
    """Bars of recall@10, a block a set, best first; the Binarizer's are dark."""
    parts: list[str] = []
    y = 10
    for name, result in results.items():
        parts.append(f'<text x="8" y="{y + 13}" font-weight="bold">{SETS[name]}</text>')
        y += LINE + 4
        for row in sorted(result["summary"], key=lambda row: -row["recall@10"]["mean"]):
            if row["method"] not in NAMES:
                continue
            value = row["recall@10"]["mean"]
            colour = "#1f4e79" if row["method"].startswith("binarizer") else "#b8c4d0"
            title = f"{NAMES[row['method']].replace('`', '')} ({row['bytes']:g} B)"
            length = round(value * (WIDTH - LEFT - 60), 1)
            parts.append(f'<text x="{LEFT - 6}" y="{y + 12}" text-anchor="end">{title}</text>')
            parts.append(
                f'<rect x="{LEFT}" y="{y + 2}" width="{length}" height="{LINE - 5}" fill="{colour}"/>'
            )
            parts.append(f'<text x="{LEFT + length + 5}" y="{y + 12}">{value:.3f}</text>')
            y += LINE
        y += 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{y}" fill="white"/>', *parts, "</svg>"]) + "\n"


def page() -> str:
    before, rest = PAGE.read_text().split(MARKS[0])
    return before + MARKS[0] + table(load()) + MARKS[1] + rest.split(MARKS[1])[1]


def main() -> None:
    PAGE.write_text(page())
    PICTURE.write_text(picture(load()))


if __name__ == "__main__":
    main()
