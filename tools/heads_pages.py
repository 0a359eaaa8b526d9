"""Writes docs/generalisations.md, its pictures, and the table of docs/upgrade.md from the committed results.

    python tools/heads_pages.py

The tests keep them current. Pictures are plain SVG, drawn here, so that they are the same on every machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "generalisations.md"
UPGRADE = ROOT / "docs" / "upgrade.md"
IMAGES = ROOT / "docs" / "img"
MARKS = ("<!-- results: written by tools/heads_pages.py -->\n", "<!-- end of results -->\n")
Json = dict[str, Any]


def load(name: str) -> Json:
    data: Json = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def figure(row: Json, name: str, digits: int = 3) -> str:
    mean, spread = row[name]["mean"], row[name]["std"]
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def bars(title: str, rows: list[tuple[str, float, float]], note: str) -> str:
    """Horizontal bars (name, value, spread); the binary ones of this project stand out."""
    left, width, step = 210, 360, 26
    most = max(value for _, value, _ in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 {70 + step * len(rows)}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="680" height="{70 + step * len(rows)}" fill="#ffffff"/>',
        f'<text x="10" y="22" font-size="15" fill="#222222">{escape(title)}</text>',
    ]
    for i, (name, value, spread) in enumerate(rows):
        y, length = 38 + step * i, width * value / most
        colour = "#2a6f97" if name.startswith("RBE") and "untrained" not in name else "#b8c4cc"
        parts += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end" fill="#222222">{escape(name)}</text>',
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="17" fill="{colour}"/>',
            f'<text x="{left + length + 8:.1f}" y="{y + 13}" fill="#222222">{value:.3f}</text>',
        ]
        if spread:
            half = width * spread / most
            parts.append(
                f'<line x1="{left + length - half:.1f}" x2="{left + length + half:.1f}" y1="{y + 8}" '
                f'y2="{y + 8}" stroke="#222222"/>'
            )
    foot = 58 + step * len(rows)
    parts.append(f'<text x="10" y="{foot}" font-size="12" fill="#555555">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def points(rows: list[Json], name: str) -> list[tuple[str, float, float]]:
    def label(row: Json) -> str:
        return f"{row['model']}, {row['bytes']} bytes" if row["bytes"] else row["model"]

    return [(label(row), row[name]["mean"], row[name]["std"] or 0.0) for row in rows]


def images() -> dict[Path, str]:
    results = load("generalisations")
    return {
        IMAGES / "hashing.svg": bars(
            "Nearest ten documents from the same subpackage",
            points(results["hashing"]["rows"], "precision@10"),
            "docstrings of NumPy, SciPy and scikit-learn; lines: standard deviation over seeds",
        ),
        IMAGES / "cbow.svg": bars(
            "Nearest ten words shared with a float model",
            points(results["cbow"]["rows"], "overlap@10"),
            "words of Wikipedia titles; float: another seed, the most that can be expected",
        ),
    }


def page() -> str:
    results = load("generalisations")
    hashing, cbow = results["hashing"], results["cbow"]
    examples = [
        [word, ", ".join(near["float"]), ", ".join(near["rbe"])] for word, near in cbow["examples"].items()
    ]
    return f"""# RBE on other networks

The paper ends with the remark that recurrent binary embedding is not bound to CLSM, and sketches two other networks.
Both are here, small enough to read, with real data and figures. This page is written by `tools/heads_pages.py` from
`benchmarks/results/generalisations.json`.

## Semantic hashing: documents

An auto-encoder squeezes the word counts of a document through a narrow layer and asks for the words back. The narrow
layer, the code of the document, is replaced by the RBE layers: `word counts → f → RBE → b → word counts`. No labels and no
pairs are needed.

```python
from pathlib import Path

import rbegir
from rbegir.lab.hashing import HashingConfig, SemanticHashing

documents = Path("titles.txt").read_text().splitlines()  # any texts, the longer the better
hasher = SemanticHashing.fit(documents, HashingConfig(epochs=2))
known = [text for text in documents if set(text.split()) & set(hasher.vocabulary)]

index = rbegir.Index.create("documents.rbe", hasher)  # an encoder like any other
index.add(known[:500])
print(index.search(known[0], k=3).texts)
index.close()
```

![Share of the nearest ten documents from the same subpackage](img/hashing.svg)

{hashing["documents"]:,} docstrings of installed packages in {
        hashing["classes"]
    } subpackages; a fifth of them ask, the
others are stored; mean ± standard deviation over seeds.

{
        table(
            ["model", "bytes a document", "of the nearest ten, from the same subpackage"],
            [[r["model"], str(r["bytes"] or ""), figure(r, "precision@10")] for r in hashing["rows"]],
        )
    }
The binary code is better than the float code layer that it replaces, at a thirty-second of its size, perhaps because so few
bits cannot learn single documents by heart. More planes than one add next to nothing here. A random projection
(“untrained”) is already a fair hash, and all words, weighted by TF-IDF, are better than any code of this size.

## CBOW: words

word2vec's CBOW asks the words around a place for the word at it. The RBE layers go after its sum layer:
`words around → sum → RBE → b → the word`. The code of a word is what they make of the word alone.

```python
from rbegir.lab.cbow import CBOW, CBOWConfig

words = CBOW.fit(documents, CBOWConfig(min_count=3, epochs=2))
frequent = words.vocabulary[10]
print(words.similar(frequent, k=5))  # nearest by binary codes, 16 bytes a word
print(words.encode_keywords([frequent]))
```

![Share of the nearest ten words that a float model has too](img/cbow.svg)

{cbow["words"]:,} words of {
        cbow["titles"]:,} titles. “Shared” are the nearest ten that the float model (64 numbers, 256
bytes) has too; two float models that differ in nothing but the seed share as many as the first row says. “Substitute”
is an independent check: how often the nearest ten hold the word that editors put in its place, in
{
        cbow[
            "substitutes"
        ]:,} pairs such as *phahonyothin highway → phahonyothin road* that differ in one word and that no model has
seen.

{
        table(
            ["model", "bytes a word", "shared with float", "substitute found"],
            [
                [r["model"], str(r["bytes"] or ""), figure(r, "overlap@10"), figure(r, "substitute@10", 4)]
                for r in cbow["rows"]
            ],
        )
    }
{table(["word", "nearest, float", "nearest, binary"], examples)}
Titles are short, two words on average, so neighbours are those of titles: *river* is close to what else is named in the
same way. Binary codes of 16 bytes keep nine tenths of what another float model would share.

## Run it again

```text
{hashing["command"]}
{cbow["command"]}
```
"""


def mean(runs: list[Json], side: str, case: str, name: str) -> str:
    values = [run[side][case][name] for run in runs if name in run[side][case]]
    if not values:
        return ""
    middle = sum(values) / len(values)
    spread = (sum((v - middle) ** 2 for v in values) / max(1, len(values) - 1)) ** 0.5
    return f"{middle:.3f}" + (f" ± {spread:.3f}" if len(values) > 1 else "")


def upgrade_table() -> str:
    result = load("upgrade")
    runs = result["runs"]
    cases = [
        ("old queries, old codes", "new", "old/old"),
        ('`keywords="keep"`: new queries, old codes', "keep", "new/old"),
        ('`keywords="new"`: new queries, old codes', "new", "new/old"),
        ('`keywords="new"`: new queries, new codes', "new", "new/new"),
        ('`keywords="new"`: new queries, half of the codes old, half new', "new", "new/both"),
        ("trained apart: new queries, new codes", "apart", "new/new"),
        ("trained apart: half old, half new, two query codes, merged by cosine", "apart", "both"),
    ]
    names = ("roc_auc", "recall@1", "recall@10", "recall@100")
    rows = [[told, *(mean(runs, side, case, name) for name in names)] for told, side, case in cases]
    pairs = result["pairs"]
    return (
        table(["", "ROC AUC", *names[1:]], rows)
        + f"\nThe shipped sample (editor-made aliases, not clicks): the old model has seen {pairs['old']:,} pairs, the "
        f"new ones {pairs['new']:,}; recall among {result['corpus']:,} titles, pairs of titles that no model has seen; "
        f"{len(runs)} seed{'s' if len(runs) > 1 else ''}. `{result['command']}`\n"
    )


def current_upgrade() -> str:
    before, rest = UPGRADE.read_text().split(MARKS[0])
    return before + MARKS[0] + upgrade_table() + MARKS[1] + rest.split(MARKS[1])[1]


def main() -> None:
    PAGE.write_text(page())
    UPGRADE.write_text(current_upgrade())
    for path, drawing in images().items():
        path.write_text(drawing)


if __name__ == "__main__":
    main()
