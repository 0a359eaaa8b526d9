"""Every way to narrow, page or join a search, against plain NumPy, while an index changes.

An index is changed at random (adds of all sizes, replaced ids, updates, deletes by id and by filter,
compactions, merges) and so is a plain list of what it should hold. Codes and queries are those of `worlds`:
near, opposite, one bit apart, of the smallest and largest norms, equal by the hundred. After each change

    filters      a where, allow, deny and must of its own for each query of a batch
    must         texts with words side by side, in any case
    tenant       the keywords of one tenant, of many or none
    item         the best keyword of each item; those without an item stay apart
    min_score    all hits that reach a score, drawn from scores that are there
    pages        page after page to the end, some with a change between them
    maxsim       items by several vectors per query, to the last bit of the score
    neighbors    each keyword searched in its own index, or among those of its tenant or that pass a filter
    join         each keyword of another index searched in this one, or among what passes a filter
    duplicates   groups of keywords linked by a score

The wanted answer is taken from the list, sorted in full by `codes.score`. What is compared is every id, row,
order key and score, in order, and now and then texts and attributes. A result is the answer to one query, or
for a join to one keyword.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir._native import available_isas
from rbegir.codes import score
from rbegir.codes.planes import Codes
from rbegir.index.store import Index
from rbegir.search.hits import Hits
from torture.history import no_fsync, small_sizes
from torture.limits import Limits, memory
from torture.worlds import KEYWORDS, make_keywords, make_queries

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = list[Ints]  # of each query, in order
Answer = tuple[str, int, bool, str]  # the way of asking, results, whether all are right, what was asked

WAYS = (
    "filters", "must", "tenant", "item", "min_score", "pages", "maxsim", "neighbors", "join", "duplicates"
)  # fmt: skip
QUERIES, MULTI = 256, 96  # of a world; of one call of maxsim
LEAST = 30  # live keywords after a change
SHOPS = ("a", "b", "", "ü", "only once")
WORDS = ("red", "RED", "shoes", "blue", "redshoes", "Été", "x9")
BETWEEN = (" ", "  ", "-", ", ", "_")
PHRASES = ("red", "red shoes", "Shoes-red", "blue", "été", "x9 red shoes", "nobody")
CHANGES = ("put", "put", "replace", "update", "delete", "delete where", "compact")


class Plain:
    """What an index should hold: an entry for every row that was ever added, deleted ones included."""

    def __init__(self, n: int, planes: int) -> None:
        self.n = n
        self.codes = np.zeros((planes, 0, n // 64), np.uint64)  # [planes, rows, words]
        self.live = np.zeros(0, np.bool_)
        self.id = np.zeros(0, np.int64)
        self.columns: dict[str, list[Any]] = {name: [] for name in ("text", "price", "item", "shop")}

    def put(self, codes: Codes, ids: list[int], columns: dict[str, list[Any]]) -> None:
        """Add keywords, in place of those with the same ids."""
        self.drop(np.isin(self.id, ids))
        self.codes = np.concatenate([self.codes, codes.planes], axis=1)
        self.live = np.concatenate([self.live, np.ones(len(ids), np.bool_)])
        self.id = np.concatenate([self.id, np.array(ids, np.int64)])
        for name, values in self.columns.items():
            values += columns[name]

    def drop(self, rows: Bools) -> int:
        gone = int(np.sum(self.live & rows))
        self.live &= ~rows
        return gone

    def where(self, name: str, test: Any) -> Bools:
        """The rows with a value that passes a test; null never does."""
        passes = [value is not None and test(value) for value in self.columns[name]]
        return np.array(passes, np.bool_).reshape(-1)

    def has_words(self, phrase: str) -> Bools:
        """The rows with the words of a phrase side by side in their texts."""
        wanted = _words(phrase)

        def has(text: str) -> bool:
            words = _words(text)
            return any(words[i : i + len(wanted)] == wanted for i in range(len(words)))

        return self.where("text", has)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


class World:
    """An index and what it should hold."""

    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        self.rng = rng
        self.n, self.planes = int(rng.choice((64, 64, 128))), int(rng.integers(1, 5))
        self.values = make_queries(rng, QUERIES, self.n)
        self.norms = score.norm_squared(self.values)
        self.isa, threads = str(rng.choice(available_isas())), int(rng.choice((1, 3)))
        kinds = rng.choice([kind for kind in KEYWORDS if kind != "encoded"], 2)
        pool = [make_keywords(rng, kind, 300, self.planes, self.values) for kind in kinds]
        few = int(rng.choice((5, 60, 600)))  # different codes: ties abound
        self.pool = rng.permutation(np.concatenate(pool))[:few]
        self.name = f"n = {self.n}, {self.planes} planes, {self.isa} × {threads}, {' and '.join(kinds)}"
        self.plain = Plain(self.n, self.planes)
        with mock.patch.dict(os.environ, {"RBEGIR_ISA": self.isa}):
            self.index = Index.create(
                folder / "x.rbe",
                n=self.n,
                keyword_planes=self.planes,
                id_type="int64",
                tenant="shop",
                threads=threads,
            )
        for count in (LEAST, *rng.choice((1, 65, 130), 2)):
            self._put(self._new_ids(int(count)))
        self.other_rows = Plain(self.n, planes := int(rng.integers(1, 5)))
        self.other = Index.create(
            folder / "y.rbe", n=self.n, keyword_planes=planes, id_type="int64", threads=1
        )
        self._fill_other()
        self._sort()

    def close(self) -> None:
        self.index.close()
        self.other.close()

    # ---- changes ----

    def change(self) -> str:
        """One random change, to both; returns its name."""
        kind, plain = str(self.rng.choice(CHANGES)), self.plain
        if kind == "put":
            self._put(self._new_ids(int(self.rng.choice((1, 2, 30, 150)))))
        elif kind == "replace":
            self._put(self._live_ids(int(self.rng.choice((1, 10, 60)))))
        elif kind == "update":
            ids = self._live_ids(int(self.rng.choice((1, 20))))
            place = {int(key): row for row, key in enumerate(plain.id) if plain.live[row]}
            rows = [place[key] for key in ids]
            prices, named = self._prices(len(ids)), self.rng.random(len(ids)) < self.rng.choice((0.5, 1))
            records = [
                {"price": price} if own else {"item": "i0"} for price, own in zip(prices, named, strict=True)
            ]
            whole = {"price": pa.array(prices, pa.int64())}
            assert self.index.update(ids, whole if named.all() else records) == len(ids)
            kept = {name: [values[row] for row in rows] for name, values in plain.columns.items()}
            for place, record in enumerate(records):
                for name, value in record.items():
                    kept[name][place] = value
            moved = Codes(np.ascontiguousarray(plain.codes[:, rows]), self.n)
            plain.put(moved, ids, kept)
        elif kind == "delete":
            ids = self._live_ids(int(self.rng.choice((1, 10, 100))))
            assert self.index.delete([*ids, 10**9]) == plain.drop(np.isin(plain.id, ids))
        elif kind == "delete where":
            least, shop = int(self.rng.integers(12, 20)), str(self.rng.choice(SHOPS))
            gone = plain.where("price", lambda price: price >= least)
            gone &= plain.where("shop", lambda name: name == shop)
            assert self.index.delete(where=f"price >= {least}", tenant=shop) == plain.drop(gone)
        else:
            self.index.compact()
        if plain.live.sum() < LEAST or not {"price", "item"} <= self.index.info()["attributes"].keys():
            self._put(self._new_ids(2 * LEAST))  # compaction drops columns without values
        self._sort()
        return kind

    def _put(self, ids: list[int]) -> None:
        count = len(ids)
        codes = self._codes(count, self.planes)
        columns: dict[str, list[Any]] = {
            "text": self._texts(count),
            "price": self._prices(count),
            "item": [None if i < 0 else f"i{i}" for i in self.rng.integers(-2, 12, count).tolist()],
            "shop": self.rng.choice(SHOPS[:-1], count, p=(0.6, 0.3, 0.05, 0.05)).tolist(),
        }
        if not len(self.plain.id):
            columns["shop"][0] = SHOPS[-1]
        texts = columns["text"] if self.rng.random() < 0.8 else None
        attributes = {
            "price": pa.array(columns["price"], pa.int64()),
            "item": pa.array(columns["item"], pa.string()),
            "shop": columns["shop"],
        }
        self.index.add_codes(codes, ids, attributes, texts=texts, upsert=True)
        self.plain.put(codes, ids, {**columns, "text": texts or [None] * count})

    def _fill_other(self) -> None:
        for count in (40, 70):
            ids = list(range(len(self.other_rows.id), len(self.other_rows.id) + count))
            codes = self._codes(count, self.other_rows.codes.shape[0])
            self.other.add_codes(codes, ids)
            self.other_rows.put(codes, ids, {name: [None] * count for name in self.other_rows.columns})
        gone = self.rng.choice(100, 15, replace=False)
        self.other.delete(gone)
        self.other_rows.drop(np.isin(self.other_rows.id, gone))

    def _codes(self, count: int, planes: int) -> Codes:
        values = self.pool[self.rng.integers(0, len(self.pool), count)]
        most = 2**planes - 1
        return Codes.from_values(np.clip(values, -most, most).astype(np.int16), planes)

    def _texts(self, count: int) -> list[str]:
        sizes = self.rng.integers(0, 4, count)
        return [str(self.rng.choice(BETWEEN)).join(self.rng.choice(WORDS, size)) for size in sizes]

    def _prices(self, count: int) -> list[int | None]:
        return [None if price < 0 else price for price in self.rng.integers(-2, 20, count).tolist()]

    def _new_ids(self, count: int) -> list[int]:
        first = len(self.plain.id)
        return list(range(first, first + count))

    def _live_ids(self, count: int) -> list[int]:
        live = self.plain.id[self.plain.live]
        return [int(key) for key in self.rng.choice(live, min(count, live.size), replace=False)]

    # ---- the wanted order ----

    def _sort(self) -> None:
        """Sort all live rows for every query."""
        self.rows = np.flatnonzero(self.plain.live)
        self.codes = Codes(np.ascontiguousarray(self.plain.codes[:, self.rows]), self.n)
        keys = score.keys(self.values, self.codes)
        order = np.argsort(-keys, axis=1, kind="stable")  # ties by row
        self.best = self.rows[order]  # [queries, live]
        self.keys = np.zeros((QUERIES, self.plain.live.size), np.int64)  # [queries, rows]
        self.keys[:, self.rows] = keys
        self.scores = score.cosine(self.keys, self.norms)

    def _wanted(self, passes: Bools, k: int | None) -> Rows:
        """The best k rows of each query; `passes` is [rows] or [queries, rows]."""
        passes = np.broadcast_to(passes, self.keys.shape)
        kept = np.take_along_axis(passes, self.best, 1)
        return [best[own][:k] for best, own in zip(self.best, kept, strict=True)]

    def _same(self, hits: Hits, wanted: Rows) -> bool:
        """Whether the hits of all queries are these rows."""
        counts = [len(rows) for rows in wanted]
        if hits.rows.shape != (QUERIES, max(counts)) or hits.counts.tolist() != counts:
            return False
        query, rows = np.repeat(np.arange(QUERIES), counts), np.concatenate(wanted)
        there = hits.places
        same = np.array_equal(hits.rows[there], rows)
        same = same and np.array_equal(hits.ids[there], self.plain.id[rows])
        same = same and np.array_equal(hits.keys[there], self.keys[query, rows])
        same = same and np.array_equal(hits.scores[there], self.scores[query, rows])
        if hits.texts is not None and hits.attributes is not None:
            columns = self.plain.columns
            names = ("price", "item", "shop")
            same = same and hits.texts[there].tolist() == [columns["text"][row] for row in rows]
            stored = [row for found in hits.attributes for row in found]
            same = same and stored == [{name: columns[name][row] for name in names} for row in rows]
        return same

    # ---- what is asked ----

    def answers(self, ways: set[str]) -> Iterator[Answer]:
        """Ask in each of these ways and compare."""
        for way in WAYS:
            if way in ways:
                for count, same, asked in getattr(self, f"_{way}")():
                    yield way, count, same, f"{self.name}: {asked}"

    def _search(self, k: int | None, **options: Any) -> Hits:
        shown = self.rng.random() < 0.1
        return self.index.search_codes(self.values, k, texts=shown, attributes=shown, **options)

    def _k(self) -> int:
        return int(self.rng.choice((1, 3, 10, 1000)))

    def _where(self) -> tuple[str, Bools]:
        """A filter and the rows that pass it."""
        plain, least = self.plain, int(self.rng.integers(-1, 21))
        null = np.array([price is None for price in plain.columns["price"]])
        tests = {
            f"price < {least}": plain.where("price", lambda price: price < least),
            f"price >= {least} or item = 'i3'": plain.where("price", lambda price: price >= least)
            | plain.where("item", lambda item: item == "i3"),
            "price is null": null,
            f"price is not null and shop in ('b', 'ü') and id < {40 * least}": ~null
            & plain.where("shop", lambda shop: shop in ("b", "ü"))
            & (plain.id < 40 * least),
        }
        where = str(self.rng.choice(list(tests)))
        return where, tests[where]

    def _maybe_where(self) -> tuple[str | None, Bools]:
        return self._where() if self.rng.random() < 0.5 else (None, np.ones(self.plain.live.size, np.bool_))

    def _filter(self) -> tuple[dict[str, Any], Bools]:
        """A filter of one or more kinds, and the rows that pass it."""
        options: dict[str, Any] = dict.fromkeys(("where", "allow", "deny", "must"))
        passes = np.ones(self.plain.live.size, np.bool_)
        where, allow, deny, must = self.rng.random(4) < 0.4
        if where:
            options["where"], own = self._where()
            passes &= own
        if allow:
            options["allow"] = [*self._live_ids(int(self.rng.choice((1, 30, 200)))), 10**9]
            passes &= np.isin(self.plain.id, options["allow"])
        if deny:
            options["deny"] = self._live_ids(int(self.rng.choice((1, 30, 200))))
            passes &= ~np.isin(self.plain.id, options["deny"])
        if must:
            options["must"] = str(self.rng.choice(PHRASES))
            passes &= self.plain.has_words(options["must"])
        return options, passes

    def _filters(self) -> Iterator[tuple[int, bool, str]]:
        made = [self._filter() for _ in range(int(self.rng.choice((2, 8))))]
        of_query, k = self.rng.integers(0, len(made), QUERIES), self._k()
        passes = np.array([own for _, own in made])[of_query]
        options = {name: [made[number][0][name] for number in of_query] for name in made[0][0]}
        options = {name: given for name, given in options.items() if any(v is not None for v in given)}
        yield QUERIES, self._same(self._search(k, **options), self._wanted(passes, k)), f"k = {k}, {options}"

    def _must(self) -> Iterator[tuple[int, bool, str]]:
        phrase, k = str(self.rng.choice(PHRASES)), self._k()
        same = self._same(self._search(k, must=phrase), self._wanted(self.plain.has_words(phrase), k))
        yield QUERIES, same, f"k = {k}, must {phrase!r}"

    def _shop(self) -> tuple[str, Bools]:
        shop = str(self.rng.choice((*SHOPS, "nobody")))
        return shop, self.plain.where("shop", lambda name: name == shop)

    def _tenant(self) -> Iterator[tuple[int, bool, str]]:
        (shop, own), (options, passes), k = self._shop(), self._filter(), self._k()
        same = self._same(self._search(k, tenant=shop, **options), self._wanted(own & passes, k))
        yield QUERIES, same, f"k = {k}, tenant {shop!r}, {options}"

    def _item(self) -> Iterator[tuple[int, bool, str]]:
        (options, passes), k = self._filter(), self._k()
        wanted = [self._first_of_items(rows)[:k] for rows in self._wanted(passes, None)]
        yield QUERIES, self._same(self._search(k, item="item", **options), wanted), f"k = {k}, {options}"

    def _first_of_items(self, rows: Ints) -> Ints:
        seen: set[str] = set()
        kept = []
        for row in rows:
            item = self.plain.columns["item"][row]
            if item is None or item not in seen:
                kept.append(row)
                seen.add(item)
        return np.array(kept, np.int64)

    def _least(self, scores: Floats) -> float:
        """A score that is there, or the number next to it."""
        one = float(self.rng.choice(scores.ravel())) if scores.size else 0.0
        return float(self.rng.choice((one, one, np.nextafter(one, 2), np.nextafter(one, -2))))

    def _min_score(self) -> Iterator[tuple[int, bool, str]]:
        least, (options, passes) = self._least(self.scores[:, self.rows]), self._filter()
        k = None if self.rng.random() < 0.5 else self._k()
        wanted = self._wanted(passes & (self.scores >= least), k)
        same = self._same(self._search(k, min_score=least, **options), wanted)
        yield QUERIES, same, f"k = {k}, min_score {least!r}, {options}"

    def _pages(self) -> Iterator[tuple[int, bool, str]]:
        k = int(self.rng.choice((20, 100)))
        options, passes = self._filter()
        last = np.full(QUERIES, 2**62), np.full(QUERIES, -1)  # key and row of the last hit of each query
        after, asked = None, f"k = {k}, {options}"
        for page in range(6):
            keys, rows = self.keys, np.arange(self.plain.live.size)
            behind = keys < last[0][:, None]
            behind |= (keys == last[0][:, None]) & (rows > last[1][:, None])
            wanted = self._wanted(passes & behind, k)
            hits = self._search(k, after=after, **options)
            yield QUERIES, self._same(hits, wanted), f"page {page}, {asked}"
            if not any(len(rows) for rows in wanted):
                break
            for query, found in enumerate(wanted):
                if found.size:
                    last[0][query], last[1][query] = self.keys[query, found[-1]], found[-1]
            after = hits.cursor
            if self.rng.random() < 0.2:
                options, passes = {}, np.ones(1, np.bool_)  # the old filter was of the old rows
                asked += f", then {self.change()} and no filter"

    def _maxsim(self) -> Iterator[tuple[int, bool, str]]:
        (shop, own), k = self._shop(), self._k()
        sizes = self.rng.choice((1, 2, 5, 31, 32, 33), MULTI, p=(0.2, 0.3, 0.3, 0.1, 0.05, 0.05))
        queries = [self.values[self.rng.integers(0, QUERIES, size)] for size in sizes]
        options, passes = self._filter()
        if self.rng.random() < 0.5:
            options["tenant"] = shop
        else:
            own = np.ones_like(own)
        found = self.index.maxsim(queries, k, item="item", **options)
        wanted = self._best_items(queries, own, passes, k)
        columns = [found[name].to_pylist() for name in ("query", "rank", "item", "score", "id")]
        yield MULTI, list(zip(*columns, strict=True)) == wanted, f"k = {k}, {sizes.tolist()}, {options}"

    def _best_items(
        self, queries: list[npt.NDArray[np.int16]], own: Bools, passes: Bools, k: int
    ) -> list[tuple[int, int, str | None, float, int]]:
        """(query, rank, item, score, id) of the best items; those that pass nothing are left out."""
        mine = np.flatnonzero(own[self.rows])  # places among the live rows
        items = [self.plain.columns["item"][row] for row in self.rows[mine]]
        numbers: dict[Any, int] = {}  # items in the order of their first keywords
        for place, item in enumerate(items):
            numbers.setdefault(place if item is None else item, len(numbers))
        item_of = np.array([numbers[i if item is None else item] for i, item in enumerate(items)], np.int64)
        kept = passes[self.rows[mine]]
        mine, item_of = mine[kept], item_of[kept]
        there, first = np.unique(item_of, return_index=True)
        keywords = self.codes[mine].values().astype(np.float64)
        inverse = 1 / np.sqrt((keywords**2).sum(axis=1))
        best = []
        for number, vectors in enumerate(queries):
            wide = vectors.astype(np.float64)
            matches = wide @ keywords.T * inverse  # [vectors, keywords]
            most = np.full((len(numbers), len(vectors)), -np.inf)
            np.maximum.at(most, item_of, matches.T)
            norms = np.sqrt((wide**2).sum(axis=1))
            own_inverse = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
            scores = _added(most[there] * own_inverse)
            order = np.argsort(-scores, kind="stable")[:k]
            for rank, place in enumerate(order, 1):
                row = self.rows[mine[first[place]]]
                item = self.plain.columns["item"][row]
                best.append((number, rank, item, float(scores[place]), int(self.plain.id[row])))
        return best

    def _pairs(
        self, queries: Codes, ids: Ints, rows: Ints, k: int | None, least: float | None, itself: Ints | None
    ) -> list[tuple[int, int, int, float]]:
        """(id, neighbor, rank, score) of every query among these rows; `itself`: the rows of the queries."""
        place = np.searchsorted(self.rows, rows)
        values = queries.values()
        keys = score.keys(values, self.codes[place])
        scores = score.cosine(keys, score.norm_squared(values))
        pairs: list[tuple[int, int, int, float]] = []
        for number, order in enumerate(np.argsort(-keys, axis=1, kind="stable")):
            if itself is not None:
                order = order[rows[order] != itself[number]]
            order = order[:k]
            if least is not None:
                order = order[scores[number, order] >= least]
            near, own = self.plain.id[rows[order]].tolist(), scores[number, order].tolist()
            pairs += zip([int(ids[number])] * len(near), near, range(1, len(near) + 1), own, strict=True)
        return pairs

    def _limits(self, scores: Floats) -> tuple[int | None, float | None]:
        k = None if self.rng.random() < 0.3 else int(self.rng.choice((1, 3, 20)))
        return k, self._least(scores) if k is None or self.rng.random() < 0.5 else None

    def _neighbors(self) -> Iterator[tuple[int, bool, str]]:
        shop, own = self._shop()
        if self.rng.random() < 0.5:
            shop, own = None, np.ones_like(own)  # type: ignore[assignment]
        where, passes = self._maybe_where()
        rows = self.rows[(own & passes)[self.rows]]
        codes = self.codes[np.searchsorted(self.rows, rows)]
        k, least = self._limits(self._high(codes))
        found = self.index.neighbors(k, least, where=where, tenant=shop)
        wanted = self._pairs(codes, self.plain.id[rows], rows, k, least, rows)
        asked = f"k = {k}, min_score {least!r}, where {where!r}, tenant {shop!r}"
        yield rows.size, _tuples(found) == wanted, asked

    def _join(self) -> Iterator[tuple[int, bool, str]]:
        theirs = np.flatnonzero(self.other_rows.live)
        codes = Codes(np.ascontiguousarray(self.other_rows.codes[:, theirs]), self.n)
        k, least = self._limits(self._high(codes))
        where, passes = self._maybe_where()
        found = self.index.join(self.other, k, least, where=where)
        rows = self.rows[passes[self.rows]]
        wanted = self._pairs(codes, self.other_rows.id[theirs], rows, k, least, None)
        yield theirs.size, _tuples(found) == wanted, f"k = {k}, min_score {least!r}, where {where!r}"

    def _high(self, codes: Codes) -> Floats:
        """Scores of the better tenth of some pairs."""
        values = codes.values()[:20]
        scores = score.cosine(score.keys(values, self.codes), score.norm_squared(values)).ravel()
        return np.sort(scores)[-max(1, scores.size // 10) :] if scores.size else scores

    def _duplicates(self) -> Iterator[tuple[int, bool, str]]:
        shop, own = self._shop()
        if self.rng.random() < 0.5:
            shop, own = None, np.ones_like(own)  # type: ignore[assignment]
        rows = self.rows[own[self.rows]]
        codes = self.codes[np.searchsorted(self.rows, rows)]
        least = min(1.0, self._least(self._high(codes)))
        found = self.index.duplicates(least, tenant=shop)
        columns = [found[name].to_pylist() for name in ("group", "id", "text")]
        same = list(zip(*columns, strict=True)) == self._groups(codes, rows, least)
        yield rows.size, same, f"min_score {least!r}, tenant {shop!r}"

    def _groups(self, codes: Codes, rows: Ints, least: float) -> list[tuple[int, int, str | None]]:
        """(group, id, text): labels spread along the links until nothing changes."""
        if not rows.size:
            return []
        values = codes.values()
        _, first, copy_of = np.unique(values, axis=0, return_index=True, return_inverse=True)
        node = first[copy_of.ravel()]  # the first keyword with the same code
        scores = score.cosine(score.keys(values, codes), score.norm_squared(values))
        linked = np.triu(scores >= least, 1)[np.ix_(node, node)]  # the earlier code is the query
        linked = linked | linked.T | (node[:, None] == node)
        label = np.arange(rows.size)
        while True:
            lower = np.where(linked, label, rows.size).min(axis=1)
            if np.array_equal(lower, label):
                break
            label = lower
        sizes = Counter(label.tolist())
        group = {one: number for number, one in enumerate(sorted(one for one in sizes if sizes[one] > 1))}
        members = sorted((group[one], place) for place, one in enumerate(label.tolist()) if one in group)
        texts = self.plain.columns["text"]
        return [(number, int(self.plain.id[rows[place]]), texts[rows[place]]) for number, place in members]


def _added(matches: Floats) -> Floats:
    """The sums of matches [items, vectors]: within blocks of 32 by halves, then block after block."""
    total = np.zeros(len(matches))
    for start in range(0, matches.shape[1], 32):
        block = np.zeros((len(matches), 32))
        own = matches[:, start : start + 32]
        block[:, : own.shape[1]] = own
        while block.shape[1] > 1:
            half = block.shape[1] // 2
            block = block[:, :half] + block[:, half:]
        total += block[:, 0]
    return total


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [table[name].to_pylist() for name in ("id", "neighbor_id", "rank", "score")]
    return list(zip(*columns, strict=True))


def compare(limits: Limits, first: int = 0) -> dict[str, Any]:
    """Worlds until every way has given enough results; `first` and the number of processes select them."""
    end = time.monotonic() + limits.seconds
    seen: Counter[str] = Counter(dict.fromkeys(WAYS, 0))
    wrong: list[str] = []
    worlds = 0
    with tempfile.TemporaryDirectory(dir=memory()) as folder, small_sizes(), no_fsync():
        while not wrong and time.monotonic() < end and min(seen.values()) < limits.points:
            number = first + worlds * limits.processes
            worlds += 1
            inner = Path(folder) / str(number)
            inner.mkdir()
            world = World(inner, np.random.default_rng([limits.seed, number]))
            for turn in range(6):
                left = {way for way in WAYS if seen[way] < limits.points}
                for way, count, same, asked in world.answers(left):
                    seen[way] += count
                    if not same:
                        wrong.append(f"world {number}, change {turn}, {way}: {asked}"[:2000])
                        break
                if wrong or time.monotonic() > end:
                    break
                world.change()
            world.close()
    return {
        "worlds": worlds,
        "results": sum(seen.values()),
        "by_way": dict(seen),
        "losses": len(wrong),
        "first_losses": wrong,
    }


def run(limits: Limits) -> dict[str, Any]:
    """Processes that share the worlds; `limits.points` are results of every way."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    own = replace(limits, points=-(-limits.points // limits.processes))
    with limits.pool() as pool:
        found = list(pool.map(partial(compare, own), range(limits.processes)))
    ways = sum((Counter(part["by_way"]) for part in found), Counter())
    return {name: sum(part[name] for part in found) for name in ("worlds", "results", "losses")} | {
        "by_way": {way: ways[way] for way in WAYS},
        "first_losses": [loss for part in found for loss in part["first_losses"]],
    }
