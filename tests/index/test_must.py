"""`must`: every hit's text has the words, and hits are those of the same filter."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import rbegir
from rbegir.errors import InputError
from rbegir.index import where
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder, PlainIndex
from tests.index.test_where import words
from tests.reranking import make_model, some_texts

TEXTS = some_texts(600)


def has(text: str, phrase: str) -> bool:
    found, wanted = words(text), words(phrase)
    return any(found[at : at + len(wanted)] == wanted for at in range(len(found)))


def test_equal_to_a_full_sort(tmp_path: Path) -> None:
    encoder = HashEncoder()
    plain = PlainIndex(encoder)
    texts = [text.title() if i % 3 else text.replace(" ", "-") for i, text in enumerate(TEXTS)]
    with Index.create(tmp_path / "x.rbe", encoder) as index:
        index.add(texts[:300], attributes={"n": list(range(300))})
        index.add(texts[300:], attributes={"n": list(range(300, 600))})
        plain.add(texts, None, [{"n": n} for n in range(600)])
        phrases = [" ".join(text.split()[:2]) for text in TEXTS[:20]] + ["it's", "DATA", "no such word"]
        for phrase in phrases:
            wanted = plain.search("q", 9, lambda record, phrase=phrase: has(record["text"], phrase))
            assert index.search("q", 9, must=phrase).ids.ravel().tolist() == [one for one, _, _ in wanted]
            assert index.count(f"contains(text, '{phrase.replace(chr(39), chr(39) * 2)}')") == sum(
                has(text, phrase) for text in texts
            )
        queries, musts = ["a", "b", "c"], [phrases[0], None, phrases[1]]
        hits = index.search(queries, 9, must=musts, where=["n < 200", "n > 500", None])
        bounds = [(0, 199), (501, 600), (0, 600)]
        for number, (query, must, (low, high)) in enumerate(zip(queries, musts, bounds, strict=True)):
            wanted = plain.search(
                query,
                9,
                lambda record, must=must, low=low, high=high: (
                    low <= record["n"] <= high and (must is None or has(record["text"], must))
                ),
            )
            assert hits.ids[number, : hits.counts[number]].tolist() == [one for one, _, _ in wanted]


@pytest.mark.parametrize("count", [1, 2, where.JOINED - 1, where.JOINED, where.JOINED + 1])
def test_any_of_many_words_is_one_test(tmp_path: Path, count: int) -> None:
    some = ["DATA", "river", "É", "no1", *(f"w{number}" for number in range(count))][:count]
    texts = [*TEXTS, "Data!", "the-river", "databank", "é w1", "w11", "éa"]
    notes = [None if number % 2 else text for number, text in enumerate(texts)]
    any_word = " or ".join(f"contains(text, '{word}')" for word in some)
    any_note = " or ".join(f"(contains(note, '{word}'))" for word in some)
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add(texts, ids=range(len(texts)), attributes={"note": notes})

        def passing(filter_: str) -> list[int]:
            return [row["id"] for row in index.rows(where=filter_)]

        found = [number for number, text in enumerate(texts) if any(has(text, word) for word in some)]
        even = [number for number in found if number % 2 == 0]
        others = [number for number in range(0, len(texts), 2) if number not in found]
        assert passing(any_word) == found
        assert passing(any_note) == even
        assert passing(f"not ({any_note})") == others  # a null passes neither
        assert passing(f"id = 1 or {any_note} or note is null and id < 4") == sorted({1, 3, *even})
        assert passing(f"({any_word}) and ({any_note})") == even
        assert passing(f"{any_word} or contains(text, 'no such words')") == found
    types = {"text": pa.string(), "note": pa.string()}
    shown = str(where.Parser(f"{any_word} or {any_note}", types).parse())
    assert shown.count("match_substring_regex") == 2 * -(-count // where.JOINED)


def test_reranked_hits_have_the_words_too(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", TEXTS)
    with Index.create(tmp_path / "x.rbe", model) as index:
        index.add(TEXTS)
        hits = index.search([TEXTS[3], "unrelated"], 50, must="data", candidates=60)
        assert hits.reranked
        assert hits.counts.min() > 10
        assert all(has(hit.text, "data") for found in hits for hit in found)
        same = index.search([TEXTS[3], "unrelated"], 50, where="contains(text, 'data')", candidates=60)
        assert hits.ids.tolist() == same.ids.tolist()


def test_generations_and_refusals(tmp_path: Path) -> None:
    encoder = HashEncoder()
    with Index.create(tmp_path / "x.rbe", encoder) as index:
        index.add(["red shoes", "shoes, red", "Shoes — RED!"])
        for wrong in ("", " — ", 7, ["red", 7]):
            with pytest.raises(InputError, match="must is a text with a word in it, got"):
                index.search("a", must=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="must has 1 entries for 2 queries"):
            index.search(["a", "b"], must=["red"])
    with rbegir.Generations([tmp_path / "x.rbe"], encoder, read_only=True) as both:
        assert sorted(both.search("a", must="shoes red").ids[0].tolist()) == [1, 2]
