"""Writes the tables of docs/vectors.md and its picture from benchmarks/results/accuracy-*.json.

python tools/vectors_page.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "vectors.md"
PICTURE = ROOT / "docs" / "img" / "recall.svg"
MARKS = ("<!-- results: written by tools/vectors_page.py -->\n", "<!-- end of results -->\n")
SETS = {
    "glove": "GloVe, 50-d",
    "clsm": "CLSM, 64-d",
    "minilm": "MiniLM, 384-d",
    "lsa": "LSA, 256-d",
    "patches": "patches, 128-d",
    "minilm-part": "MiniLM, a part",
}
TWO_BITS = {"glove": 16, "clsm": 16, "minilm": 96, "lsa": 64, "patches": 32, "minilm-part": 96}
NAMES = {
    "binarizer": "Binarizer",
    "binarizer_patient": "Binarizer, four times the moves",
    "binarizer_quick": "Binarizer, an eighth of the moves",
    "binarizer_3_planes": "Binarizer, 3-bit query",
    "binarizer_start": "Binarizer, `rounds=0`",
    "rq": "FAISS residual quantiser",
    "prq": "FAISS residual quantisers of parts",
    "lsq": "FAISS LSQ",
    "opq": "FAISS OPQ",
    "pq": "FAISS PQ",
    "rabitq": "FAISS RaBitQ",
    "turbovec": "turbovec",
    "scalar": "rotation + scalar",
    "sign_rescore": "sign + float16 rescore",
}
WIDTH, LINE, LEFT = 720, 18, 220

Results = dict[str, dict[str, Any]]


def load() -> Results:
    found = {}
    for name in SETS:
        path = ROOT / "benchmarks" / "results" / f"accuracy-vectors-{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
    return found


def lines_at(result: dict[str, Any], size: int) -> dict[str, dict[str, Any]]:
    """Method → line of the summary, for one budget in bytes."""
    return {row["method"]: row for row in result["summary"] if row["budget_bytes"] == size}


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def main_table(results: Results) -> str:
    """2 bits a dimension: a row a method."""
    rows = []
    for method, title in NAMES.items():
        cells = []
        for name, result in results.items():
            row = lines_at(result, TWO_BITS[name]).get(method)
            cells.append("" if row is None else f"{figure(row['recall@10'])} ({row['bytes']:g})")
        if any(cells):
            rows.append([title, *cells])
    sizes = "; ".join(
        f"{SETS[name]}: {r['vectors']['count']:,} vectors, {r['vectors']['queries']:,} queries, "
        f"{r['vectors']['train_rows']:,} other rows to learn from"
        for name, r in results.items()
    )
    head = ["recall@10 (bytes)", *(SETS[name] for name in results)]
    nearest = "; ".join(f"{SETS[name]} {margin(r, TWO_BITS[name])}" for name, r in results.items())
    ahead = f"The Binarizer ahead of the best peer, seed by seed: {nearest}."
    return f"{markdown(head, rows)}\n{ahead}\n\n{sizes}.\n"


def margin(result: dict[str, Any], size: int) -> str:
    """How far the best peer is behind."""
    peers = [row for row in lines_at(result, size).values() if "ahead" in row]
    best = min(peers, key=lambda row: row["ahead"]["mean"])
    return f"{figure(best['ahead'])} ({NAMES[best['method']]})"


def figure(spread: dict[str, Any]) -> str:
    half = "" if spread["half_width"] is None else f" ± {spread['half_width']:.3f}"
    return f"{spread['mean']:.3f}{half}"


def depth_table(results: Results) -> str:
    """2 bits a dimension: the top 100, and how often the best is among the first 10."""
    rows = []
    for method, title in NAMES.items():
        found = [lines_at(result, TWO_BITS[name]).get(method) for name, result in results.items()]
        if any(found):
            rows.append(
                [title]
                + [
                    "" if r is None else f"{r['recall@100']['mean']:.3f} · {r['recall@1']['mean']:.3f}"
                    for r in found
                ]
            )
    return markdown(["recall@100 · best in 10", *(SETS[name] for name in results)], rows)


def size_table(name: str, result: dict[str, Any]) -> str:
    """Every budget of a set: a row each; sizes in brackets where they are not the budget."""
    sizes = sorted({row["budget_bytes"] for row in result["summary"]})
    shown = [m for m in NAMES if m == "binarizer" or not m.startswith("binarizer")]
    shown = [m for m in shown if any(m in lines_at(result, size) for size in sizes)]
    rows = []
    for size in sizes:
        here = lines_at(result, size)
        cells = []
        for method in shown:
            row = here.get(method)
            actual = "" if row is None or row["bytes"] == size else f" ({row['bytes']:g})"
            cells.append("" if row is None else f"{row['recall@10']['mean']:.3f}{actual}")
        rows.append([str(size), *cells])
    return markdown([f"{SETS[name]}: bytes", *(NAMES[m] for m in shown)], rows)


def task_line() -> str:
    """The title search: means over seeds, and the span of their intervals."""
    path = ROOT / "benchmarks" / "results" / "accuracy-title-task.json"
    task = json.loads(path.read_text())
    head = ["title search", "bytes", "nDCG@10", "of float", "95 % interval"]
    rows = [["float32", str(4 * 384), f"{task['float_ndcg@10']:.4f}", "1", ""]]
    for method in dict.fromkeys(row["method"] for row in task["rows"]):
        found = [row for row in task["rows"] if row["method"] == method]
        span = f"{min(row['low'] for row in found):.4f} – {max(row['high'] for row in found):.4f}"
        means = [f"{statistics.fmean(row[key] for row in found):.4f}" for key in ("ndcg@10", "kept")]
        rows.append([method, str(found[0]["bytes"]), *means, span])
    seeds = len({row["seed"] for row in task["rows"]})
    about = f"{task['keywords']:,} titles, {task['queries']:,} aliases as queries, {seeds} seeds"
    return f"{markdown(head, rows)}\n{about}.\n"


def table(results: Results) -> str:
    parts = [main_table(results), depth_table(results)]
    for name, result in results.items():
        if len({row["budget_bytes"] for row in result["summary"]}) > 1:
            parts.append(size_table(name, result))
    return "\n".join([*parts, task_line()])


def picture(results: Results) -> str:
    """Bars of recall@10, a block a set, best first; the Binarizer's are dark."""
    parts: list[str] = []
    y = 10
    for name, result in results.items():
        parts.append(f'<text x="8" y="{y + 13}" font-weight="bold">{SETS[name]}</text>')
        y += LINE + 4
        lines = lines_at(result, TWO_BITS[name]).values()
        for row in sorted(lines, key=lambda row: -row["recall@10"]["mean"]):
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
