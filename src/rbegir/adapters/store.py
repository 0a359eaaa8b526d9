"""Documents with free metadata, kept in an index whose attributes are typed columns.

A value of metadata that is a text, a number or a truth value becomes an attribute of its own, which filters
can test. The rest (lists, dictionaries, None, names that the index reserves) goes as JSON into one more
attribute, REST, and comes back unchanged. One name must keep one type: the index refuses a second one.

Ids of frameworks are texts. An index whose ids are whole numbers gets them as such: "7" is 7.

Tests on metadata become one `where` text:

    {"lang": "en", "price": {"$lt": 10}}    →    ("lang" = 'en' and "price" < 10)

Frameworks let "not equal" and "not in" pass where there is no value, so both become `… or "name" is null`.
"""

import json
import math
import secrets
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.base.arguments import RESERVED, number_named
from rbegir.encode.binarizer.binarizer import Binarizer, shapes
from rbegir.encode.encoder import takes_vectors
from rbegir.errors import FilterError, InputError
from rbegir.index.store import Index
from rbegir.search.hits import Hit

REST = "_metadata"
Metadata = dict[str, Any]


class Documents:
    """Documents in `index`, an `rbegir.Index` or an `rbegir.Client`.

    They are found by texts, or if they are `embedded` by the vectors of an embedding model: then the index is
    one of a Binarizer, or None until the first documents are added. It is made at `path`, or where that is
    None in a temporary directory that lives as long as this object. `bytes` is what a vector may take in it.
    """

    def __init__(
        self, index: Any = None, path: str | Path | None = None, *, bytes: int | None = None
    ) -> None:
        self.embedded = index is None or (isinstance(index, Index) and takes_vectors(index.model))
        if self.embedded and index is not None and path is not None:
            raise InputError("index and path cannot both be given", hint="path is where a new index is made")
        if bytes is not None:
            if index is not None:
                raise InputError(
                    "index and bytes cannot both be given", hint="bytes is for an index that is made"
                )
            shapes(bytes)  # refuses what no code takes before anything is added
        self.index, self._path, self._bytes = index, path, bytes

    def add(
        self, texts: list[str], ids: list[Any], metadata: list[Metadata], embed: Callable[[], Any]
    ) -> None:
        """Add documents, replacing those with the same ids; `embed` makes the vectors that may be needed."""
        attributes = metadata if any(metadata) else None
        if not self.embedded:
            self.index.upsert(texts, ids, attributes)
            return
        vectors = as_vectors(embed())
        if self.index is None:
            if self._path is None:
                folder = tempfile.mkdtemp(prefix="rbegir-")
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                self._path = Path(folder) / "documents.rbe"
            self.index = Index.create(self._path, fitted(vectors, self._bytes), id_type="string")
        codes = self.index.model.encode_keywords(vectors)
        self.index.add_codes(codes, ids, attributes, texts=texts, upsert=True)

    def search(self, query: Any, k: int, where: str | None) -> list[Hit]:
        """The best k documents for a text or, if they are embedded, for a vector."""
        if self.index is None:
            return []
        return list(self.index.search(as_vectors([query]) if self.embedded else query, k, where=where)[0])

    def diverse(self, query: Any, k: int, among: int, weight: float, where: str | None) -> list[Hit]:
        """k of the best `among` hits by maximal marginal relevance: near the query, and far from each other.

        Each next hit has the greatest weight · (its score) − (1 − weight) · (its cosine to the nearest one
        chosen). Scores and cosines are those of the codes.
        """
        if self.index is not None and not hasattr(self.index, "codes"):
            raise InputError("a service does not return the codes of its hits", hint="open the index itself")
        hits = self.search(query, max(k, among), where)
        if not hits:
            return []
        values = self.index.codes([hit.id for hit in hits]).values().astype(np.float64)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        left, chosen = list(range(len(hits))), list[int]()
        while left and len(chosen) < k:
            redundancy = (values[left] @ values[chosen].T).max(axis=1) if chosen else 0.0
            scores = np.array([hits[place].code_score for place in left])
            chosen.append(left.pop(int(np.argmax(weight * scores - (1 - weight) * redundancy))))
        return [hits[place] for place in chosen]

    def get(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """The documents with these ids, without those that do not exist."""
        known = self.stored_ids(ids)
        found = self.index.get(known) if known and self.index is not None else []
        return [record for record in found if record is not None]

    def delete(self, ids: Sequence[str]) -> None:
        """Delete documents by id; unknown ids are ignored."""
        known = self.stored_ids(ids)
        if known and self.index is not None:
            self.index.delete(known)

    def stored_ids(self, ids: Sequence[str]) -> list[Any]:
        """Ids of a framework as the index has them; those that it cannot have are left out."""
        if not self._whole_ids():
            return list(ids)
        return [number for number in map(number_named, ids) if number is not None]

    def new_ids(self, count: int, given: Sequence[str | None] | None) -> list[Any]:
        """Ids for new documents: the given ones, random ones where there is None."""
        names = list(given or [None] * count)
        if not self._whole_ids():
            return [str(uuid.uuid4()) if name is None else name for name in names]
        ids = [secrets.randbits(53) if name is None else number_named(name) for name in names]
        if None in ids:
            raise InputError(
                f"the id {names[ids.index(None)]!r} is not a whole number, as the ids of this index are",
                hint="make the index with id_type='string' to use other ids",
            )
        return ids

    def _whole_ids(self) -> bool:
        """Whether ids are numbers. An index that never held a keyword takes what comes."""
        info = {} if self.index is None else self.index.info()
        return bool(info and info["id_type"] == "int64" and info["next_row"] > 0)


FIT_ROWS = 1000


def as_vectors(given: Any) -> npt.NDArray[np.float32]:
    """Embeddings as an array [count, dims]."""
    try:
        return np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise InputError("embeddings must be lists of numbers of one length") from None


def fitted(vectors: npt.NDArray[np.float32], bytes: int | None = None) -> Binarizer:
    """A Binarizer for vectors like these, with codes of so many bytes.

    A few vectors say nothing about the directions that later ones take, and codes fitted to them alone would
    lose those directions. So fewer than FIT_ROWS are completed by random vectors of the same length.
    """
    missing = FIT_ROWS - len(vectors)
    if missing > 0 and vectors.ndim == 2 and len(vectors):
        random = np.random.default_rng(0).standard_normal((missing, vectors.shape[1])).astype(np.float32)
        length = np.linalg.norm(vectors, axis=1).mean() / np.sqrt(vectors.shape[1])
        vectors = np.concatenate([vectors, random * length])
    return Binarizer(bytes=bytes).fit(vectors)


def pack(metadata: Mapping[str, Any]) -> Metadata:
    """Metadata → attributes."""
    attributes: Metadata = {}
    rest: Metadata = {}
    for name, value in metadata.items():
        if not isinstance(name, str):
            raise InputError(f"names in metadata must be texts, got {name!r}")
        finite = isinstance(value, float) and math.isfinite(value)
        plain = finite or isinstance(value, (str, int))
        (attributes if plain and name and name not in (*RESERVED, REST) else rest)[name] = value
    if rest:
        try:
            attributes[REST] = json.dumps(rest, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"metadata must be values that JSON can hold: {error}", hint="convert it to text first"
            ) from None
    return attributes


def unpack(attributes: Mapping[str, Any] | None) -> Metadata:
    """Attributes → metadata."""
    found = {name: value for name, value in (attributes or {}).items() if value is not None}
    rest = found.pop(REST, None)
    return {**found, **json.loads(rest)} if rest is not None else found


COMPARE = {"$eq": "=", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_KNOWN = "known are " + ", ".join([*COMPARE, "$in", "$nin", "$exists", "$and", "$or", "$not"])


def column(name: Any) -> str:
    """A name as `where` quotes it."""
    if not isinstance(name, str) or not name:
        raise FilterError(f"the name of an attribute must be a text, got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def value(given: Any) -> str:
    """A value as `where` writes it."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, str):
        return "'" + given.replace("'", "''") + "'"
    if isinstance(given, (int, float)) and math.isfinite(given):
        return repr(given)
    raise FilterError(
        f"a filter compares with texts, numbers and truth values, got {given!r}", hint="use $exists for null"
    )


EVERYTHING = "(text is null or text is not null)"
NOTHING = "(text is null and text is not null)"


def join(parts: Sequence[str], word: str) -> str:
    """Tests, all or any of which must hold."""
    if not parts:
        return EVERYTHING if word == "and" else NOTHING
    return "(" + f" {word} ".join(parts) + ")" if len(parts) > 1 else parts[0]


def where(given: Mapping[str, Any] | str | None) -> str | None:
    """A filter as a dictionary in the usual notation, or as `where` text already."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise FilterError(f"filter must be a dictionary or a text, got {type(given).__name__}")
    return _every(given) if given else None


def _every(given: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, wanted in given.items():
        if name in ("$and", "$or"):
            if not isinstance(wanted, Sequence) or not all(isinstance(one, Mapping) for one in wanted):
                raise FilterError(f"{name} needs a list of dictionaries")
            parts.append(join([_every(one) for one in wanted], name[1:]))
        elif name == "$not":
            if not isinstance(wanted, Mapping):
                raise FilterError("$not needs a dictionary")
            parts.append(f"not {_every(wanted)}")
        elif isinstance(name, str) and name.startswith("$"):
            raise FilterError(f"{name} is not an operator", hint=_KNOWN)
        elif isinstance(wanted, Mapping):
            parts += [_test(name, operator, operand) for operator, operand in wanted.items()]
        else:
            parts.append(_test(name, "$eq", wanted))
    return join(parts, "and")


def _test(name: str, operator: str, operand: Any) -> str:
    """One test of one attribute."""
    quoted = column(name)
    if operator in COMPARE:
        test = f"{quoted} {COMPARE[operator]} {value(operand)}"
        return f"({test} or {quoted} is null)" if operator == "$ne" else test
    if operator == "$exists":
        return f"{quoted} is {'not ' if operand else ''}null"
    if operator not in ("$in", "$nin"):
        raise FilterError(f"{operator} is not an operator", hint=_KNOWN)
    if isinstance(operand, str) or not isinstance(operand, Sequence):
        raise FilterError(f"the values for {name!r} must be a list, got {type(operand).__name__}")
    if not operand:
        return NOTHING if operator == "$in" else EVERYTHING
    values = ", ".join(map(value, operand))
    among = f"{quoted} in ({values})"
    return among if operator == "$in" else f"({quoted} not in ({values}) or {quoted} is null)"
