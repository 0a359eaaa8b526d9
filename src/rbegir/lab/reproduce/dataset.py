"""The data of the tables: pairs, titles to search, labels if there are any, and the split.

A folder holds

    redirects.*       pairs with the columns alias and title (or query and keyword)
    titles.*          the corpus, one text per line or a column `text`
    entity_labels.*   optional: query, title, grade (0, 1, 2 …) and slice

in any format that the readers know. Without a folder the shipped sample is used, which has no labels.

A title belongs to one part, by the fixed hash of `rbegir.read.split`:

    position < 0.02            test: what every figure is measured on
    up to 0.02 + select        choice of the best epoch
    the rest                   training

so no figure comes from titles that influenced any choice of a run.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.errors import FileError
from rbegir.evaluate.evaluator import corpus_texts
from rbegir.evaluate.groups import distinct
from rbegir.read.pairs import read_labels, read_pairs, read_texts
from rbegir.read.sample import sample_path
from rbegir.read.source import open_source
from rbegir.read.split import VALID_SHARE, positions

SELECT_SHARE = 0.005
FOLDER, SAMPLE = "folder", "sample"  # names of datasets
HOLDS = "--data is a folder with redirects.*, titles.* and, optionally, entity_labels.*"
HEADLINE = "SemSearch_ES"  # the slice of the labels whose relevance shows in titles


@dataclass(frozen=True)
class Dataset:
    """All data for training and measuring."""

    name: str
    train: pa.Table  # query, keyword, weight
    select: pa.Table
    test: pa.Table
    corpus: pa.LargeStringArray  # distinct
    labels: dict[str, pa.Table]  # slice → query, keyword, label; empty without labels

    def describe(self) -> dict[str, object]:
        return {
            "name": self.name,
            "train_pairs": self.train.num_rows,
            "select_pairs": self.select.num_rows,
            "test_pairs": self.test.num_rows,
            "corpus": len(self.corpus),
            "labels": {name: table.num_rows for name, table in self.labels.items()},
        }


def load(folder: str | Path | None) -> Dataset:
    """The dataset of a folder, or the shipped sample."""
    if folder is None:
        whole = pa.concat_tables([read_pairs(sample_path(part)).read_all() for part in ("train", "valid")])
        return split(SAMPLE, whole, corpus_texts(read_texts(sample_path("titles"))), {}, select=0.01)
    path = Path(folder)
    pairs = find(path, "redirects")
    columns = set(open_source(pairs).columns)
    names = ("alias", "title") if {"alias", "title"} <= columns else ("query", "keyword")
    table = read_pairs(pairs, query_column=names[0], keyword_column=names[1]).read_all()
    labels = sorted(path.glob("entity_labels.*"))
    return split(
        FOLDER,
        table,
        corpus_texts(read_texts(find(path, "titles"))),
        load_labels(labels[0]) if labels else {},
    )


def split(
    name: str,
    pairs: pa.Table,
    corpus: pa.LargeStringArray,
    labels: dict[str, pa.Table],
    *,
    select: float = SELECT_SHARE,
) -> Dataset:
    """Pairs cut into the three parts above, each sorted by its texts, whatever the file's order."""
    pairs = pairs.sort_by([("keyword", "ascending"), ("query", "ascending")])
    keywords, keyword = distinct(pairs["keyword"])
    place = positions(keywords.to_pylist())[keyword]  # [pairs]

    def part(low: float, high: float) -> pa.Table:
        return pairs.filter(pa.array((place >= low) & (place < high)))

    bar = VALID_SHARE + select
    return Dataset(name, part(bar, 1.0), part(VALID_SHARE, bar), part(0.0, VALID_SHARE), corpus, labels)


def load_labels(path: Path) -> dict[str, pa.Table]:
    """Judged pairs by slice (`all` has every one), in lower case like the titles."""
    table = read_labels(path, keyword_column="title", label_column="grade").read_all()
    lower = {name: pc.utf8_lower(table[name]) for name in ("query", "keyword")}
    table = pa.table({**lower, "label": table["label"]})
    if "slice" not in open_source(path).columns:
        return {"all": table}
    # the rows again, with the slice read as the query
    sliced = read_labels(path, query_column="slice", keyword_column="title", label_column="grade").read_all()
    if sliced.num_rows != table.num_rows:
        raise FileError(f"{path} has rows without a slice", hint="name one in every row, or drop the column")
    names = sorted(sliced["query"].unique().to_pylist())
    return {**{name: table.filter(pc.equal(sliced["query"], name)) for name in names}, "all": table}


def headline(labels: dict[str, pa.Table]) -> str | None:
    """The slice whose figures are quoted."""
    return HEADLINE if HEADLINE in labels else next(iter(labels), None)


def find(folder: Path, stem: str, hint: str = HOLDS) -> Path:
    """The file of a folder with this name, whatever its format."""
    found = sorted(folder.glob(f"{stem}.*"))
    if not found:
        raise FileError(f"{folder} has no file {stem}.*", hint=hint)
    return found[0]


def sample_rows(count: int, most: int, seed: int) -> npt.NDArray[np.int64]:
    """At most `most` of `count` row numbers, in order, drawn with a seed."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
