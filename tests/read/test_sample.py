"""The shipped sample is what its README says, and can be drawn again."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rbegir.errors import FileError, InputError
from rbegir.read import sample as data
from rbegir.read.pairs import read_pairs, read_texts
from rbegir.read.sample import SAMPLES, sample_path
from rbegir.read.split import VALID_SHARE, hash_position

ROOT = Path(__file__).parents[2]


def pairs_of(name: str) -> list[tuple[str, str]]:
    table = read_pairs(sample_path(name), strict=True).read_all()
    return list(zip(table["query"].to_pylist(), table["keyword"].to_pylist(), strict=True))


def test_split_by_title_and_sizes() -> None:
    train, valid = pairs_of("train"), pairs_of("valid")
    texts = read_texts(sample_path("titles"), strict=True).read_all()["text"].to_pylist()
    train_titles, valid_titles = {title for _, title in train}, {title for _, title in valid}
    assert all(hash_position(title) < VALID_SHARE for title in valid_titles)
    assert all(hash_position(title) >= VALID_SHARE for title in train_titles)
    assert {query for query, _ in train}.isdisjoint(query for query, _ in valid)
    assert len(valid_titles) == len(valid)
    assert len(set(texts)) == len(texts)
    assert train_titles | valid_titles <= set(texts)
    assert len(set(train)) == len(train)
    readme = (Path(data.__file__).parent / "README.md").read_text()
    for name, rows in (("train", train), ("valid", valid), ("titles", texts)):
        listed = re.search(rf"`{SAMPLES[name]}` .* ([0-9,]+) \|", readme)
        assert listed is not None
        assert int(listed[1].replace(",", "")) == len(rows)
    assert sum(sample_path(name).stat().st_size for name in SAMPLES) < 6_000_000


def test_neighbours_are_strangers() -> None:
    """In file order, a batch of 256 pairs hardly ever holds two aliases of one title."""
    titles = [title for _, title in pairs_of("train")]
    batches = [titles[i : i + 256] for i in range(0, len(titles) - 255, 256)]
    repeats = sum(len(batch) - len(set(batch)) for batch in batches)
    assert repeats / len(titles) < 0.01


def test_unknown_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="there is no sample 'tset'") as caught:
        sample_path("tset")
    assert caught.value.hint == "choose one of train, valid, titles"
    monkeypatch.setitem(SAMPLES, "train", "gone.tsv.gz")
    with pytest.raises(FileError, match=r"gone\.tsv\.gz is missing"):
        sample_path("train")


def test_drawing_is_deterministic_and_follows_the_rule(tmp_path: Path) -> None:
    redirects = [f"alias {a} of {t}\ttitle {t}" for t in range(300) for a in range(1 + t % 5)]
    titles = [f"title {t}" for t in range(400)] + [":category:things", "...", "other"]
    (tmp_path / "redirects.tsv").write_text("alias\ttitle\n" + "\n".join(redirects))
    (tmp_path / "titles.txt").write_text("\n".join(titles))

    def draw(out: str) -> dict[str, bytes]:
        command = [sys.executable, ROOT / "tools/make_sample.py", "redirects.tsv", "titles.txt", out]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        return {name: (tmp_path / out / file).read_bytes() for name, file in SAMPLES.items()}

    first = draw("one")
    assert first == draw("two")
    lines = {name: gzip.decompress(raw).decode().splitlines() for name, raw in first.items()}
    assert lines["train"][0] == lines["valid"][0] == "query\tkeyword"
    wanted = {f"title {t}" for t in range(300) if 1 + t % 5 >= 3}
    valid = {title for title in wanted if hash_position(title) < VALID_SHARE}
    assert {line.split("\t")[1] for line in lines["valid"][1:]} == valid
    assert len(lines["valid"]) == 1 + len(valid)
    expected = [line for line in redirects if line.split("\t")[1] in wanted - valid]
    assert sorted(lines["train"][1:]) == sorted(expected)
    others = {f"title {t}" for t in range(300, 400)} | {"other"}
    assert lines["titles"] == sorted(wanted | others)


def test_drawing_from_a_missing_file(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools/make_sample.py", "no.tsv", "no.txt", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: no.tsv does not exist\n"
