"""From runs to tables: each row beside the paper's figures, and the orderings that the paper claims.

Tables 1 to 4, on the accuracy of models, are here; those on retrieval and the system in `system_tables`.

A table is one JSON object:

    table, title, paper         what it is, and where the paper has it
    command                     what makes it again
    columns                     [[key, heading], …] in order
    rows                        [{model, command, …}]; a figure is {mean, std, seeds} or a plain value
    orderings                   [{claim, paper, difference, error, verdict}]

which `report` turns into Markdown and `rbegir reproduce --json` prints.
"""

from __future__ import annotations

from collections.abc import Callable

from rbegir.lab.reproduce import paper, system_tables
from rbegir.lab.reproduce.results import Json, TableMaker, bits_of, shown
from rbegir.lab.reproduce.rows import OTHER_RECIPES, under


def accuracy(make: TableMaker) -> Json:
    """Table 1: the models of the paper, trained alike: with our recipe, then with others."""
    models = [
        (source, printed, under(recipe, "m_3"), under(recipe, "m_1"))
        for recipe in ("", *OTHER_RECIPES)
        for name, printed in paper.ACCURACY.items()
        if make.results.runs(source := under(recipe, name))
    ]
    rows = []
    for name, printed, low, high in models:
        shape = make.rows[name].shape
        rows.append(
            {
                "model": shown(name),
                "n": shape.n,
                "q": bits_of(shape.query_planes),
                "k": bits_of(shape.keyword_planes),
                "epochs": len(make.results.runs(name)[0]["history"]),
                **make.figures(name, "log_loss", "roc_auc", "recall@10"),
                "labels": make.label(name),
                "lift": make.results.lift(name, low, high),
                "seeds": len(make.results.runs(name)) or None,
                "paper_loss": printed.log_loss,
                "paper_auc": printed.roc_auc,
                "paper_lift": printed.lift,
                "command": make.command(name),
            }
        )
    gap = paper.REFERENCE_GAP
    return {
        "title": "Model configurations and accuracy",
        "paper": "tables 1 and 2",
        "columns": [
            ["model", "model"], ["n", "n"], ["q", "query bits"], ["k", "keyword bits"], ["epochs", "epochs"],
            ["log_loss", "log loss"], ["roc_auc", "ROC AUC"], ["lift", "AUC lift %"],
            ["recall@10", "R@10"], ["labels", "label AUC"], ["seeds", "seeds"],
            ["paper_loss", "paper: log loss"], ["paper_auc", "paper: AUC"],
            ["paper_lift", "paper: lift %"],
        ],
        "rows": rows,
        "orderings": [
            *make.order("m_3 above m_2", "m_3", "m_2", 0.7846 - 0.7719),
            *make.order("rbe* above m_3", "rbe_star", "m_3", 0.8005 - 0.7846),
            *make.order("m_5 above rbe*", "m_5", "rbe_star", 0.8011 - 0.8005),
            *make.order("m_1 above m_5", "m_1", "m_5", 0.8044 - 0.8011),
            *make.order("m_1 above m_3: the reference gap", "m_1", "m_3", gap),
        ],
    }  # fmt: skip


def bits(make: TableMaker) -> Json:
    """Table 2: more planes."""
    rows = []
    for name, printed in paper.BITS.items():
        if not make.results.runs(name):
            continue
        shape = make.rows[name].shape
        rows.append(
            {
                "model": shown(name),
                "q": bits_of(shape.query_planes),
                "k": bits_of(shape.keyword_planes),
                **make.figures(name, "log_loss", "roc_auc", "recall@10"),
                "paper_loss": printed.log_loss,
                "paper_auc": printed.roc_auc,
                "command": make.command(name),
            }
        )
    steps = (("rbe_2", "m_2"), ("rbe_star", "rbe_2"), ("rbe_3", "rbe_star"))
    return {
        "title": "Bits per dimension",
        "paper": "table 4",
        "columns": [
            ["model", "model"], ["q", "query bits"], ["k", "keyword bits"], ["log_loss", "log loss"],
            ["roc_auc", "ROC AUC"], ["recall@10", "R@10"],
            ["paper_loss", "paper: log loss"], ["paper_auc", "paper: AUC"],
        ],
        "rows": rows,
        "orderings": [
            order
            for a, b in steps
            for order in make.order(
                f"{shown(a)} above {b.replace('rbe_star', 'rbe*')}",
                a, b, paper.BITS[a].roc_auc - paper.BITS[b].roc_auc,
            )
        ],
    }  # fmt: skip


def binarisation(make: TableMaker) -> Json:
    """Table 3: three estimators of the gradient of ρ."""
    rows, orderings = [], []
    for name, (variant, tanh) in paper.BINARISATION.items():
        ours = make.like(name)
        label = shown(name)
        row: Json = {"model": label, "paper_variant": variant, "paper_tanh": tanh}
        sources = {
            "variant": ours, "tanh": f"{name}, annealing tanh", "plain": f"{name}, straight-through"
        }  # fmt: skip
        for key, source in sources.items():
            found = make.figures(source, "roc_auc", "recall@10")
            row |= {key: found.get("roc_auc"), f"{key}_r10": found.get("recall@10")}
        row |= {"sources": sources, "command": make.command(sources["tanh"])}
        rows.append(row)
        better, worse = (sources["variant"], sources["tanh"])
        word = ("the variant", "annealing tanh")
        if tanh > variant:
            better, worse, word = worse, better, (word[1], word[0])
        orderings += make.order(f"{label}: {word[0]} above {word[1]}", better, worse, abs(variant - tanh))
    return {
        "title": "Binarisation: the straight-through variant, annealing tanh, plain straight-through",
        "paper": "table 5",
        "columns": [
            ["model", "model"], ["variant", "ST variant"], ["tanh", "annealing tanh"],
            ["plain", "plain straight-through"], ["variant_r10", "R@10: ST variant"],
            ["tanh_r10", "R@10: annealing tanh"], ["plain_r10", "R@10: plain"],
            ["paper_variant", "paper: ST variant"], ["paper_tanh", "paper: annealing tanh"],
        ],
        "rows": rows,
        "orderings": orderings,
    }  # fmt: skip


def weights(make: TableMaker) -> Json:
    """Table 4: planes worth (½)^t, or all the same."""
    rows, orderings = [], []
    for name, (without, weighted, lift) in paper.RESIDUAL_WEIGHTS.items():
        off = f"{name}, no weights"
        on = make.like(name)
        stats = [make.results.stat(source, "roc_auc") for source in (off, on)]
        row: Json = {"model": shown(name), "command": make.command(off)}
        for key, value in zip(("off", "on"), stats, strict=True):
            if value is not None:
                row[key] = value.to_dict()
        for key, source in (("off_r10", off), ("on_r10", on)):
            row[key] = make.figures(source, "recall@10").get("recall@10")
        if stats[0] and stats[1] and make.gap:
            row["lift"] = 100 * (stats[1].mean - stats[0].mean) / make.gap
        rows.append(row | {"paper_off": without, "paper_on": weighted, "paper_lift": lift})
        orderings += make.order(f"{shown(name)}: weights help", on, off, weighted - without)
    return {
        "title": "Residual weights off and on (ROC AUC)",
        "paper": "table 6",
        "columns": [
            ["model", "model"], ["off", "no weights"], ["on", "weights"],
            ["lift", "AUC lift, % of table 1's gap"],
            ["off_r10", "R@10: no weights"], ["on_r10", "R@10: weights"],
            ["paper_off", "paper: no weights"], ["paper_on", "paper: weights"],
            ["paper_lift", "paper: lift %"],
        ],
        "rows": rows,
        "orderings": orderings,
    }  # fmt: skip


MAKERS: dict[str, Callable[[TableMaker], Json]] = {
    "1": accuracy,
    "2": bits,
    "3": binarisation,
    "4": weights,
    "5": system_tables.top_five,
    "6": system_tables.system,
    "7": system_tables.effects,
    "bytes": system_tables.equal_bytes,
}


def table(key: str, make: TableMaker) -> Json:
    """The table of a key."""
    return {"table": key, "command": f"rbegir reproduce {key}{make.options}", **MAKERS[key](make)}
