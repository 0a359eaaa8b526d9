"""`rbegir missrate`, `plan` and `reproduce`: the published selection, capacity, the paper's tables."""

from pathlib import Path
from typing import Any

import typer

from rbegir.cli import options
from rbegir.cli.options import needing, option, print_json, print_table, report, some, whole_option

app = typer.Typer()


@app.command("missrate")
def missrate(
    candidates: int = whole_option(..., "C: keywords that are searched."),
    top: int = whole_option(..., "N: keywords that are wanted."),
    per_thread: int = whole_option(..., "I: keywords that a thread selects from."),
    queue: int = option(1, "q: keywords that a thread keeps."),
    most: int = option(10, "The largest l of the table.", min=0),
    as_json: bool = options.AS_JSON,
) -> None:
    """Probability that the published selection misses at most l of the top N, and its expected recall."""
    from rbegir.search.missrate import certificate

    found = certificate(candidates, top, per_thread, queue, most=most)
    report(
        {"p_miss_at_most": list(found.p_miss_at_most), "expected_recall": found.expected_recall},
        as_json,
        ["l", "P(misses ≤ l) %"],
        [{"l": misses, "P(misses ≤ l) %": f"{100 * p:.6f}"} for misses, p in enumerate(found.p_miss_at_most)],
        caption=f"expected recall {found.expected_recall:.9f}",
    )


@app.command("plan")
def plan(
    keywords: int = whole_option(..., "Keywords to search."),
    latency_ms: float = option(..., "99 % of the queries must be answered within this time."),
    qps: float = option(..., "Queries per second."),
    k: int = option(1000, "Hits per query.", "-k", "--k"),
    bytes_per_keyword: int = option(16, "Bytes per code."),
    replicas: int = option(1, "Replicas of every shard, whatever the load."),
    machine: str | None = option(
        None, "Plan for this measured kind of machine only; default: the best of all."
    ),
    round_trip_ms: float = option(0.2, "Round trip between two machines of the cluster, in ms."),
    network_gbit: float = option(25.0, "Network bandwidth of a machine, in Gbit/s."),
    client_cores: int = option(16, "Cores of a machine that sends queries and merges hits."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Machines, memory, latency and the binding requirement, from measured figures and simulated delays."""
    from rbegir.lab.plan import Wish
    from rbegir.lab.plan import plan as make_plan

    wish = ("keywords", "latency_ms", "qps", "k", "bytes_per_keyword", "replicas")
    network = ("round_trip_ms", "network_gbit", "client_cores")
    found = make_plan(Wish(**some(locals(), *wish, *network)), machine=machine)
    if as_json:
        print_json(found)
    else:
        _show_plan(found)


def _show_plan(found: dict[str, Any]) -> None:
    print(found["why"])
    rows = [
        {
            "machine": option["machine"],
            "how many": option["machines"],
            "shards × copies": f"{option['shards']:,} × {option['groups']:,}",
            "GB each": option["memory_bytes_per_machine"] / 1e9,
            "p50 ms": option["latency_ms"]["p50"],
            "p99 ms": option["latency_ms"]["p99"],
            "bound by": option["bound_by"],
        }
        for option in found["options"]
    ]
    print_table(list(rows[0]), rows)
    for name, reason in found["impossible"].items():
        print(f"{name}: impossible, {reason}")
    clients = min(found["options"], key=lambda option: option["machines"])["clients"]
    print(
        f"and {clients['machines']:g} machines that send queries and merge hits "
        f"({clients['cores']:g} cores, {clients['gbit']:g} Gbit/s)"
    )
    plain, hedged = (
        {tail["shards"]: tail["p99_ms"] for tail in found["tails"] if tail["hedged"] == kind}
        for kind in (False, True)
    )
    print_table(
        ["shards", "p99 ms", "hedged"],
        ({"shards": shards, "p99 ms": plain[shards], "hedged": hedged[shards]} for shards in plain),
        title="extra latency of the slowest shard",
    )
    print_table(
        ["constant", "value", "unit", "source"],
        ({"constant": name, **constant} for name, constant in found["constants"].items()),
    )


@app.command("reproduce")
def reproduce(
    tables: list[str] | None = typer.Argument(
        None, help="1 to 7, and bytes; all if none is given.", show_default=False
    ),
    data: Path | None = option(
        None,
        "Folder with redirects.*, titles.* and, optionally, entity_labels.*; the shipped sample"
        " if not given.",
    ),
    out: Path = option(Path("rbegir-tables"), "Where runs, results and the report are kept."),
    rows: list[str] | None = option(None, "Make this row alone, repeat for more."),
    seeds: int | None = option(None, "Runs per row.", show_default="3, small: 1"),
    device: str = options.TORCH_DEVICE,
    small: bool = option(False, "Few pairs and short trainings: minutes on a CPU.", "--small"),
    workers: int = option(1, "Runs at the same time on one device.", min=1),
    together: int = option(1, "Models that each worker trains together, on the same batches.", min=1),
    seconds: float | None = option(None, "Start no run that would end later than this."),
    report: list[Path] | None = option(None, "Train nothing: write the report of these results."),
    as_json: bool = option(False, "Print the tables as one JSON list to stdout.", "--json"),
) -> None:
    """Reproduce the paper's tables on real data, next to the paper's, over several seeds.

    Finished runs are kept, so an interrupted command resumes.
    """
    from rich.console import Console

    say = Console(stderr=True).print
    with needing("training the models of the tables", "train,tables"):
        from rbegir.lab.reproduce.job import Request, make, read_results, tables_of, write_report
    from rbegir.lab.reproduce.rows import FULL, TABLES, chosen

    wanted = tuple(tables or TABLES)
    chosen(FULL, wanted)  # refuses an unknown table
    if report:
        results = [read_results(path) for path in report]
    else:
        request = Request(
            wanted, tuple(rows or ()), data, out, seeds, device, small, workers, together, seconds
        )
        results = [make(request, lambda line: say(line, highlight=False, markup=False))]
    if as_json:
        print_json([table for result in results for table in tables_of(result, wanted)])
    else:
        say(f"wrote {write_report(results, out)}", highlight=False)
