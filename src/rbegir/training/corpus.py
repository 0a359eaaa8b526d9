"""Pairs made from the corpus alone: a text, and what somebody might type who looks for it.

    query = the text with words left out, swapped, shortened or joined, and now and then a typo

They teach the spelling of the texts that will be searched. That helps where clicked pairs are few; with a
million of them it brings nothing, so fewer are made the more clicked pairs there are.
"""

import random

import pyarrow as pa

from rbegir.read.pairs import PairStream

COPIES = 4  # of each text, at most
MOST = 600_000  # pairs made of a corpus
ENOUGH = 1_000_000  # clicked pairs, from which on none are made
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def wanted_pairs(clicked: int, texts: int) -> int:
    """How many pairs to make from a corpus of `texts` texts if there are `clicked` clicked ones."""
    return int(min(COPIES * texts, MOST) * max(0.0, 1 - clicked / ENOUGH))


def corpus_pairs(texts: pa.Array, count: int, seed: int) -> pa.Table:
    """`count` pairs of a changed text and the text; every text comes about equally often."""
    draw = random.Random(seed)
    order: list[int] = []
    while len(order) < count:
        some = list(range(len(texts)))
        draw.shuffle(some)
        order += some
    keywords = texts.take(pa.array(order[:count], pa.int64()))
    queries = [changed(text, draw) for text in keywords.to_pylist()]
    columns = {"query": queries, "keyword": keywords.cast(pa.string()), "weight": [1.0] * count}
    return pa.table(columns, PairStream.schema)


def changed(text: str, draw: random.Random) -> str:
    """The text as somebody might type it; it always keeps a letter or digit."""
    words = text.split()
    if len(words) > 1 and draw.random() < 0.45:
        least = len(words) - 1 if len(words) < 4 else 2
        kept = sorted(draw.sample(range(len(words)), draw.randint(least, len(words) - 1)))
        words = [words[i] for i in kept]
    if len(words) > 1 and draw.random() < 0.2:
        at = draw.randrange(len(words) - 1)
        words[at : at + 2] = (
            [words[at + 1], words[at]] if draw.random() < 0.6 else ["".join(words[at : at + 2])]
        )
    if draw.random() < 0.15:
        at = draw.randrange(len(words))
        words[at] = words[at][: draw.randint(1, 4)]
    if draw.random() < 0.4:
        at = draw.randrange(len(words))
        words[at] = typo(words[at], draw)
    query = " ".join(words)
    return query if any(c.isalnum() for c in query) else text


def typo(word: str, draw: random.Random) -> str:
    """A letter left out, doubled, replaced or swapped with the next; short words stay."""
    if len(word) < 4:
        return word
    at = draw.randrange(1, len(word) - 1)
    kind = draw.randrange(4)
    if kind == 0:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at] + word[at:]
    if kind == 2:
        return word[:at] + draw.choice(LETTERS) + word[at + 1 :]
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
