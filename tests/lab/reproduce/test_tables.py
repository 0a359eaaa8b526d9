"""Tables and their remarks from runs with known figures."""

from __future__ import annotations

from typing import Any

from rbegir.lab.reproduce import remarks
from rbegir.lab.reproduce.job import tables_of
from rbegir.lab.reproduce.rows import PAPER, PLAIN, under

Json = dict[str, Any]


def figure(value: float) -> Json:
    return {"value": value, "interval": [value - 0.01, value + 0.01]}


def run(row: str, auc: float, recall: float, quantised: list[Json] | None = None) -> Json:
    figures = {
        "roc_auc": figure(auc),
        "log_loss": figure(1 - auc),
        **{f"recall@{k}": figure(recall) for k in (1, 10, 100)},
    }
    return {
        "row": row,
        "seed": 0,
        "figures": figures,
        "history": [],
        "studies": {"quantisers": quantised} if quantised else {},
    }


def quantiser(name: str, query: str, recall: float, size: int = 16) -> Json:
    return {
        "name": name,
        "bytes": size,
        "query": query,
        **{f"recall@{k}": figure(recall) for k in (1, 10, 100)},
    }


def result(*runs: Json) -> Json:
    return {"scale": "full", "dataset": {"name": "folder"}, "runs": list(runs)}


def test_every_recipe_has_a_reference_gap_of_its_own() -> None:
    made = result(
        run("m_1", 0.95, 0.5) | {"history": [{"loss": 1.0}] * 15},
        run("m_3", 0.94, 0.4),
        run("rbe_star", 0.9475, 0.45),
        *(
            run(under(PAPER, name), auc, 0.3)
            for name, auc in (("m_1", 0.93), ("m_3", 0.91), ("rbe_star", 0.92))
        ),
        *(
            run(under(PLAIN, name), auc, 0.3)
            for name, auc in (("m_1", 0.92), ("m_3", 0.90), ("rbe_star", 0.918))
        ),
    )
    (table,) = tables_of(made, ["1"])
    lift = {row["model"]: round(row["lift"]) for row in table["rows"]}
    assert lift["rbe*"] == 75
    assert lift["rbe*, the paper's recipe"] == 50
    assert lift["rbe*, no regularisation"] == 90
    assert [lift[f"m_1: float CLSM{end}"] for end in ("", f", {PAPER}", f", {PLAIN}")] == [100, 100, 100]
    text = remarks.of("1", made, table)
    assert "rbe* closes 75 % of the gap" in text
    assert "no guide) rbe* closes 50 %" in text
    assert "Without dropout and guide rbe* closes 90 %" in text
    assert "m_5" not in text
    assert table["rows"][0]["epochs"] == 15


def test_grades_need_no_codes_to_be_counted() -> None:
    counts = {"bad": 2, "fair": 1, "good": 3, "unjudged": 4}
    study = {"queries": 2, "found": {"all titles": counts, "the same memory": counts}}
    made = result(run("m_1", 0.95, 0.5) | {"studies": {"top_five": study}})
    (table,) = tables_of(made, ["5"])
    assert {row["found"] for row in table["rows"]} == {1.5}
    lexical = {"row": "bm25", "seed": 0, "top_five": counts, "queries": 2} | {
        f"recall@{k}": 0.1 for k in (1, 10, 100)
    }
    (table,) = tables_of(result(lexical), ["5"])
    assert [row["found"] for row in table["rows"]] == [None]


def test_plain_straight_through_is_told_by_its_course() -> None:
    courses = {
        "rbe_star, 5 epochs": (0.5, [7.0, 5.0, 4.5]),
        "rbe_star, annealing tanh": (0.49, [7.0, 5.0, 4.6]),
        "rbe_star, straight-through": (0.3, [7.0, 6.25, 7.5]),
    }
    made = result(
        *(
            {**run(name, 0.94, recall), "history": [{"loss": loss} for loss in losses]}
            for name, (recall, losses) in courses.items()
        )
    )
    (table,) = tables_of(made, ["3"])
    text = remarks.of("3", made, table)
    assert "falls to 6.25, then rises to 7.50, where the variant's ends at 4.50" in text
    assert "finds 0.300 instead of 0.500" in text
    assert text.endswith("All figures are of one seed.\n")


def test_codes_are_compared_at_equal_precision_of_the_query_and_with_a_float_query() -> None:
    quantised = [
        quantiser("PQ", "float", 0.52),
        quantiser("PQ", "3 bits", 0.50),
        quantiser("RQ", "float", 0.55),
        quantiser("RQ", "3 bits", 0.51),
        quantiser("large", "3 bits", 0.59, size=36),
    ]
    made = result(run("m_1", 0.95, 0.6, quantised), run("rbe_star", 0.94, 0.54), run("m_5", 0.94, 0.551))
    (table,) = tables_of(made, ["bytes"])
    recall = {(row["model"], row["query"]): row["recall@10"]["mean"] for row in table["rows"]}
    assert recall["m_1, RQ", "float"] == 0.55
    assert recall["m_1, RQ", "3 bits"] == 0.51
    text = remarks.of("bytes", made, table)
    assert "with a three-plane query and one seed, rbe*, find 0.540" in text
    best = "the best of 16 bytes, RQ, finds"
    assert f"rounded to eight levels), {best} 0.510: rbe* is ahead of it by 0.030" in text
    assert f"with a float query, {best} 0.550: rbe* is behind it by 0.010" in text
    assert "m_5 finds 0.551 in the same 16 bytes: level with it" in text
