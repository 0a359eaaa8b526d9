"""Every model of every table: its shape, its training, and what is measured on it besides its accuracy.

A row is trained once per seed and used by all tables that name it. All rows share one recipe, the default of
`rbegir train` except that parameters start as drawn, and differ only in the subject of their table; table 1
is also made with other recipes, since its lift depends on them. Tables 3, 4 and 7 compare many models with
each other. At full size these models, the ones they are compared with, and those of other recipes are trained
for fewer epochs.

Rows have tiers, the most important first: the first two are made with every seed before the third begins,
whose second seeds come before the first seeds of the last.
"""

from dataclasses import dataclass, replace
from typing import Any

from rbegir.encode.clsm.presets import FLOAT, ModelConfig, preset
from rbegir.errors import InputError
from rbegir.training.config import RECIPES, TrainConfig

TABLES = ("1", "2", "3", "4", "5", "6", "7", "bytes")
OURS = replace(RECIPES["default"], spelling_start=False)
PAPER, PLAIN = "the paper's recipe", "no regularisation"
OTHER_GAMMAS = {f"{PAPER}, γ = {gamma:g}": replace(RECIPES["paper"], gamma=gamma) for gamma in (5.0, 20.0)}
OTHER_RECIPES = {
    PAPER: RECIPES["paper"],
    **OTHER_GAMMAS,
    PLAIN: replace(OURS, word_dropout=0.0, gram_dropout=0.0, feature_dropout=0.0, guide=0.0),
}


@dataclass(frozen=True)
class Scale:
    """The size of a reproduction."""

    name: str
    conv: int = 288
    hash_buckets: int = 8192
    pairs: int | None = None  # training pairs, all if None
    corpus: int | None = None  # titles searched beside those of the test, all if None
    epochs: int | None = None
    short: int | None = None  # epochs of the models of tables 3, 4 and 7, if not `epochs`
    batch_size: int | None = None
    seeds: int = 3
    quantiser_train: int = 65_536  # training vectors of the quantisers; FAISS uses no more
    slow_quantisers: bool = True


FULL = Scale("full", epochs=15, short=5)
SMALL = Scale(
    "small",
    conv=144,
    pairs=40_000,
    epochs=8,  # with fewer, codes of several planes, which learn slower, fall behind those of one
    short=3,
    batch_size=512,
    seeds=1,
    quantiser_train=10_000,
    slow_quantisers=False,
)


@dataclass(frozen=True)
class ModelRow:
    """A model to train."""

    name: str
    shape: ModelConfig
    tables: str  # their names, with spaces
    settings: TrainConfig = OURS
    studies: tuple[str, ...] = ()
    short: bool = False  # trained for `Scale.short` epochs
    tier: int = 0


def rows(scale: Scale = FULL) -> list[ModelRow]:
    """All rows, the most important first."""
    return [_scaled(row, scale) for row in _rows(scale)]


def chosen(scale: Scale, tables: tuple[str, ...], names: tuple[str, ...] = ()) -> list[ModelRow]:
    """The rows of some tables, or those of some names."""
    unknown = sorted(set(tables) - set(TABLES))
    if unknown:
        raise InputError(f"unknown table {unknown[0]!r}", hint=f"choose from {', '.join(TABLES)}")
    every = rows(scale)
    if not names:
        return [row for row in every if set(row.tables.split()) & set(tables)]
    known = {row.name: row for row in every}
    for name in names:
        if name not in known:
            raise InputError(f"unknown row {name!r}", hint=f"choose from {' · '.join(known)}")
    return [known[name] for name in names]


def _scaled(row: ModelRow, scale: Scale) -> ModelRow:
    epochs = scale.short or scale.epochs if row.short else row.settings.epochs or scale.epochs
    settings = replace(row.settings, epochs=epochs, batch_size=scale.batch_size)
    shape = replace(row.shape, conv=scale.conv, hash_buckets=scale.hash_buckets)
    return replace(row, shape=shape, settings=settings)


def _rows(scale: Scale) -> list[ModelRow]:
    star = _shape("rbe_star")
    first = [
        ModelRow("rbe_star", star, "1 2 3 4 5 6 7 bytes",
            studies=("sizes", "selection", "latency", "top_five")),
        ModelRow("m_1", _shape("m_1"), "1 5 bytes", studies=("sizes", "top_five", "quantisers")),
        ModelRow("m_3", _shape("m_3"), "1 bytes", studies=("sizes",)),
        ModelRow("m_5", _shape("m_5"), "1 7 bytes", tier=1),
        ModelRow("m_2", _shape("m_2"), "1 2 3 bytes", tier=1),
        ModelRow("rbe_2", _shape("rbe_2"), "2 3 4 7 bytes", tier=1),
        ModelRow("rbe_3", _shape("rbe_3"), "2 3 4 bytes", tier=1),
        *(
            ModelRow(under(recipe, name), _shape(name, share_towers=settings.share_towers),
                "1 7" if name == "rbe_star" else "1", settings, short=True, tier=1)
            for recipe, settings in OTHER_RECIPES.items()
            if scale.short is not None or recipe not in OTHER_GAMMAS
            for name in ("rbe_star", "m_1", "m_3", *(("m_5", "m_2") if recipe == PAPER else ()))
        ),
    ]  # fmt: skip
    variants: list[tuple[str, str, dict[str, Any]]] = [
        ("no weights", "4", {"residual_weights": False}),
        ("annealing tanh", "3", {"estimator": "annealing_tanh"}),
        ("straight-through", "3", {"estimator": "straight_through"}),
    ]
    names = ("rbe_star", "rbe_1", "rbe_2", "rbe_3")
    second = [
        ModelRow(f"{name}, {what}", _shape(name, **changes), table, short=True, tier=2)
        for what, table, changes in variants
        for name in names
        if name != "rbe_1" or table == "3"  # one plane has nothing to weigh
    ]
    if scale.short is not None:
        second = [
            *(
                ModelRow(like(name, scale), _shape(name), "3 4 7", short=True, tier=2)
                for name in names
            ),
            *second,
            ModelRow("m_1, 10 epochs, 20 % feature dropout", _shape("m_1"), "bytes",
                replace(OURS, epochs=10, feature_dropout=0.2), tier=2),
        ]  # fmt: skip
    last = [
        ModelRow("fixed B and R", replace(star, time_varying=False), "7"),
        ModelRow("separate towers", replace(star, share_towers=False), "7"),
        ModelRow("10 negatives", star, "7", replace(OURS, negatives=10)),
        ModelRow("100 negatives", star, "7", replace(OURS, negatives=100)),
        ModelRow("8 query planes", replace(star, query_planes=8), "7"),
        ModelRow("1 query plane", replace(star, query_planes=1), "7"),
        ModelRow("4 query planes", replace(star, query_planes=4), "7"),
        ModelRow("no float guide", star, "7", replace(OURS, guide=0.0)),
        ModelRow("no gram dropout", star, "7", replace(OURS, gram_dropout=0.0)),
        ModelRow("no feature dropout", star, "7", replace(OURS, feature_dropout=0.0)),
        ModelRow("no word dropout", star, "7", replace(OURS, word_dropout=0.0)),
        ModelRow("6 query planes", replace(star, query_planes=6), "7"),
        ModelRow("1 negative", star, "7", replace(OURS, negatives=1)),
    ]
    wide = [
        ModelRow(
            "64x1, 8-plane query", _shape("rbe_star", keyword_planes=1, query_planes=8), "bytes", tier=3
        ),
        ModelRow("128x1, 3-plane query", _shape("rbe_star", n=128, keyword_planes=1), "bytes", tier=3),
        ModelRow("64x1, 3-plane query", _shape("rbe_star", keyword_planes=1), "bytes", tier=3),
    ]
    return [*first, *second, *(replace(row, short=True, tier=3) for row in last), *wide]


def like(name: str, scale: Scale) -> str:
    """The row to compare with rows of few epochs: the model trained for as few."""
    return name if scale.short is None else f"{name}, {scale.short} epochs"


def under(recipe: str, name: str) -> str:
    """The name of a model's row under a recipe; "" is the default recipe."""
    return f"{name}, {recipe}" if recipe else name


def _shape(name: str, **changes: Any) -> ModelConfig:
    return replace(preset(name), **{"share_towers": OURS.share_towers, **changes})


def bytes_of(shape: ModelConfig) -> int:
    """Bytes per stored keyword."""
    return 4 * shape.n if shape.keyword_planes == FLOAT else shape.n * shape.keyword_planes // 8


def query_bits(shape: ModelConfig) -> str:
    """The precision of a query, in words."""
    if shape.query_planes == FLOAT:
        return "float" if shape.keyword_planes == FLOAT else "8 bits, from a float"
    return f"{shape.query_planes} bit" + ("s" if shape.query_planes > 1 else "")
