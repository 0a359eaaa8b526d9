"""Every model of every table: its shape, how it is trained, and what is measured on it besides its accuracy.

A row is trained once for each seed and used by all tables that name it. The order below is the order of
training, so that a run that is cut short has the most telling rows: those of table 1 and of the best code
first, the effects beyond the paper last.

All rows share one recipe, the default of `rbegir train`, one tower for both sides included, and differ in
what the table is about and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rbegir.errors import InputError
from rbegir.model.presets import FLOAT, ModelConfig, preset
from rbegir.training.config import RECIPES, TrainConfig

TABLES = ("1", "2", "3", "4", "5", "6", "7", "bytes")


@dataclass(frozen=True)
class Scale:
    """How large the whole is made."""

    name: str
    conv: int = 288
    hash_buckets: int = 8192
    pairs: int | None = None  # train on so many, all if None
    corpus: int | None = None  # search so many titles (those of the test among them), all if None
    epochs: int | None = None
    batch_size: int | None = None
    seeds: int = 3
    quantiser_train: int = 65_536  # vectors that the quantisers beside us learn from


FULL = Scale("full")
SMALL = Scale("small", pairs=40_000, epochs=4, batch_size=1024, seeds=1, quantiser_train=2048)


@dataclass(frozen=True)
class Row:
    """A model to train."""

    name: str
    shape: ModelConfig
    tables: tuple[str, ...]
    settings: TrainConfig = field(default_factory=TrainConfig)
    studies: tuple[str, ...] = ()


def rows(scale: Scale = FULL) -> list[Row]:
    """All rows, the most telling first."""
    return [_scaled(row, scale) for row in _rows()]


def chosen(scale: Scale, tables: tuple[str, ...], names: tuple[str, ...] = ()) -> list[Row]:
    """The rows of some tables, or those of some names."""
    unknown = sorted(set(tables) - set(TABLES))
    if unknown:
        raise InputError(f"unknown table {unknown[0]!r}", hint=f"choose from {', '.join(TABLES)}")
    every = rows(scale)
    if not names:
        return [row for row in every if set(row.tables) & set(tables)]
    known = {row.name: row for row in every}
    for name in names:
        if name not in known:
            raise InputError(f"unknown row {name!r}", hint=f"choose from {', '.join(known)}")
    return [known[name] for name in names]


def _scaled(row: Row, scale: Scale) -> Row:
    settings = replace(
        row.settings,
        epochs=row.settings.epochs or scale.epochs,
        batch_size=row.settings.batch_size or scale.batch_size,
    )
    shape = replace(row.shape, conv=scale.conv, hash_buckets=scale.hash_buckets)
    return replace(row, shape=shape, settings=settings)


def _rows() -> list[Row]:
    star, default = preset("rbe_star"), RECIPES["default"]

    def row(
        name: str, shape: ModelConfig, tables: str, *studies: str, settings: TrainConfig = default
    ) -> Row:
        return Row(name, shape, tuple(tables.split()), settings, studies)

    def changed(name: str, tables: str, base: str = "rbe_star", **changes: object) -> Row:
        return row(name, replace(preset(base), **changes), tables)  # type: ignore[arg-type]

    accuracy = [
        row("rbe_star", star, "1 2 3 4 5 6 7 bytes", "sizes", "selection", "latency", "top_five"),
        row("m_1", preset("m_1"), "1 5 bytes", "sizes", "top_five", "quantisers"),
        row("m_3", preset("m_3"), "1 bytes", "sizes"),
        changed("128x1, 3-plane query", "bytes", n=128, keyword_planes=1),
        changed("128x1, 8-plane query", "bytes", n=128, keyword_planes=1, query_planes=8),
        changed("64x1, 3-plane query", "bytes", keyword_planes=1),
        changed("64x1, 8-plane query", "bytes", keyword_planes=1, query_planes=8),
        row("m_5", preset("m_5"), "1 bytes"),
        row("m_2", preset("m_2"), "1 2 3 bytes"),
        row("rbe_2", preset("rbe_2"), "2 3 4 7 bytes"),
        row("rbe_3", preset("rbe_3"), "2 3 4 bytes"),
    ]
    weights = [
        changed(f"{name}, no weights", "4", base=name, residual_weights=False)
        for name in ("rbe_2", "rbe_star", "rbe_3")
    ]
    estimators = [
        changed(f"{name}, {word}", "3", base=name, estimator=estimator)
        for estimator, word in (
            ("annealing_tanh", "annealing tanh"),
            ("straight_through", "straight-through"),
        )
        for name in ("rbe_1", "rbe_2", "rbe_star", "rbe_3")
    ]
    effects = [
        changed("fixed B and R", "7", base="rbe_star", time_varying=False),
        changed("separate towers", "7", share_towers=not star.share_towers),
        changed("8 query planes", "7", query_planes=8),
        changed("1 query plane", "7", query_planes=1),
        changed("4 query planes", "7", query_planes=4),
        changed("6 query planes", "7", query_planes=6),
        *(
            row(f"{count} negatives", star, "7", settings=replace(default, negatives=count))
            for count in (10, 100, 1)
        ),
        row(
            "the paper's recipe",
            replace(star, share_towers=False),
            "7",
            settings=RECIPES["paper"],
        ),
    ]
    return accuracy + weights + estimators + effects


def bytes_of(shape: ModelConfig) -> int:
    """What a stored keyword takes."""
    return 4 * shape.n if shape.keyword_planes == FLOAT else shape.n * shape.keyword_planes // 8


def query_bits(shape: ModelConfig) -> str:
    """The precision of a query, in words."""
    if shape.query_planes == FLOAT:
        return "float" if shape.keyword_planes == FLOAT else "8 bits, from a float"
    return f"{shape.query_planes} bit" + ("s" if shape.query_planes > 1 else "")
