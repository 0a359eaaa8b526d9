"""Draw the sample in src/rbegir/read/sample from the full redirect and title files.

    python tools/make_sample.py redirects.tsv.gz titles.txt.gz src/rbegir/read/sample

Everything is chosen by hashes of texts, so the same input gives the same files:

- titles with at least three aliases, so that a title is asked for in more than one way;
- validation: those whose `hash_position` is below VALID_SHARE (the rule of `rbegir.read.split`, so a
  model trained on a full split has not seen them either), one alias of each;
- training: the first of the other titles in the order of a second hash, with all of their aliases, until
  there are TRAIN_PAIRS of them;
- titles to search: all of those, and OTHER_TITLES more.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import sys
from collections import defaultdict
from pathlib import Path

from rbegir.errors import RbegirError
from rbegir.read.pairs import read_pairs, read_texts
from rbegir.read.split import VALID_SHARE, hash_position

MIN_ALIASES = 3
TRAIN_PAIRS = 150_000
OTHER_TITLES = 50_000


def draw_key(text: str) -> bytes:
    """The order in which texts are drawn; salted, so that it has nothing to do with the split."""
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"rbegir-sample").digest()


def write_gz(path: Path, lines: list[str]) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, compresslevel=9, mtime=0))
    print(f"{path}: {len(lines):,} lines, {path.stat().st_size:,} bytes", file=sys.stderr)


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Pairs in a drawn order: aliases of one title must not sit side by side in a training batch."""
    lines = sorted((f"{query}\t{keyword}" for query, keyword in pairs), key=draw_key)
    write_gz(path, ["query\tkeyword", *lines])


def make_sample(redirects: Path, titles: Path, out: Path) -> None:
    aliases: dict[str, list[str]] = defaultdict(list)
    for batch in read_pairs(redirects, query_column="alias", keyword_column="title"):
        for alias, title in zip(batch["query"].to_pylist(), batch["keyword"].to_pylist(), strict=True):
            aliases[title].append(alias)
    drawn = sorted((title for title, found in aliases.items() if len(found) >= MIN_ALIASES), key=draw_key)
    valid = {title for title in drawn if hash_position(title) < VALID_SHARE}
    train: list[tuple[str, str]] = []
    for title in drawn:
        if title not in valid and len(train) < TRAIN_PAIRS:
            train += [(alias, title) for alias in aliases[title]]
    searched = valid | {title for _, title in train}
    texts = (text for batch in read_texts(titles) for text in batch["text"].to_pylist())
    others = {
        text for text in texts if not text.startswith(":")
    } - aliases.keys()  # ":category:…" is no title
    searched |= set(sorted(others, key=draw_key)[:OTHER_TITLES])

    out.mkdir(parents=True, exist_ok=True)
    write_pairs(out / "train.tsv.gz", train)
    write_pairs(out / "valid.tsv.gz", [(min(aliases[title], key=draw_key), title) for title in valid])
    write_gz(out / "titles.txt.gz", sorted(searched))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("redirects", type=Path, help="table with the columns alias and title")
    parser.add_argument("titles", type=Path, help="one title per line")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    try:
        make_sample(args.redirects, args.titles, args.out)
    except RbegirError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
