"""A search task anybody with Debian can rebuild: find a package by words of its descriptions.

    apt-get -o Acquire::Languages=en update
    python tools/packages.py build/packages [--short 0.75]

writes texts.txt (package and short description, one per line), train.tsv and test.tsv (query, keyword). A
query is two to four content words. Each is drawn from the short description, which is part of the text to
find, with the probability `--short` (by default three quarters), otherwise from the long one, which is not; a
word drawn twice counts once. A fifth of the queries have a typo, made as in `rbegir.training.corpus`. A package with both
descriptions has three queries. Packages are divided by the fixed hash of `rbegir.read.split`: 4 % for testing,
so that no test package has a pair in training.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
from pathlib import Path

from rbegir.read.split import hash_position
from rbegir.training.corpus import typo

STOP_WORDS = """
the and for with that this from are can has have not you your all any its into other using used use
which will also such may more than package packages provides contains files support program library
based when these been most like one some does only but they their there what was were via per etc
allows include includes including containing provide
"""
STOP = frozenset(STOP_WORDS.split())
QUERIES, TEST, SHORT = 3, 0.04, 0.75


def apt(*arguments: str) -> str:
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def stanzas(text: str) -> list[dict[str, str]]:
    """The fields of each paragraph; continued lines are joined."""
    return [
        dict(re.findall(r"^([A-Za-z0-9-]+): ?(.*(?:\n[ \t].*)*)", block, re.MULTILINE))
        for block in text.split("\n\n")
        if block.strip()
    ]


def long_descriptions() -> dict[str, str]:
    """The long English description of each package."""
    lists = apt("apt-get", "indextargets", "--format", "$(FILENAME)", "Created-By: Translations").split()
    found = {}
    for name in lists or map(str, Path("/var/lib/apt/lists").glob("*Translation-en*")):
        for stanza in stanzas(apt("/usr/lib/apt/apt-helper", "cat-file", name)):
            _, _, rest = stanza.get("Description-en", "").partition("\n")
            found[stanza["Package"]] = rest.replace("\n .", "\n")
    return found


def content_words(text: str) -> list[str]:
    return [w for w in dict.fromkeys(re.findall(r"[a-z][a-z0-9+-]{2,}", text.lower())) if w not in STOP]


def queries(short: str, long: str, draw: random.Random, share: float = SHORT) -> list[str]:
    """Each word comes from the short description with the probability `share`, otherwise from the long one."""
    sources = [content_words(short), content_words(long)]
    made = []
    for _ in range(QUERIES if all(sources) else 0):
        words = [draw.choice(sources[draw.random() >= share]) for _ in range(draw.randint(2, 4))]
        if draw.random() < 0.2:
            at = draw.randrange(len(words))
            words[at] = typo(words[at], draw)
        made.append(" ".join(dict.fromkeys(words)))
    return made


def main(out: Path, share: float = SHORT) -> None:
    out.mkdir(parents=True, exist_ok=True)
    long = long_descriptions()
    draw = random.Random(0)
    texts = []
    pairs: dict[str, list[str]] = {"train": [], "test": []}
    for stanza in stanzas(apt("apt-cache", "dumpavail")):
        name, short = stanza["Package"], stanza.get("Description", "").partition("\n")[0]
        text = f"{name} {short}".strip()
        texts.append(text)
        part = "test" if hash_position(text) < TEST else "train"
        pairs[part] += [f"{query}\t{text}" for query in queries(short, long.get(name, ""), draw, share)]
    (out / "texts.txt").write_text("\n".join(dict.fromkeys(texts)) + "\n")
    for part, rows in pairs.items():
        (out / f"{part}.tsv").write_text("\n".join(["query\tkeyword", *rows]) + "\n")
        print(f"{part}: {len(rows):,} pairs")
    print(f"texts: {len(texts):,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--short", type=float, default=SHORT, help="share of words of the short description")
    given = parser.parse_args()
    if not 0 <= given.short <= 1:
        parser.error(f"--short must be a share from 0 to 1, got {given.short}")
    main(given.out, given.short)
