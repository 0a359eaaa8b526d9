"""`rbegir missrate`, `plan` and `reproduce`: the published selection, capacity, the paper's tables."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rbegir.cli.options import (
    AsJson,
    TorchDevice,
    needing,
    option,
    print_json,
    print_table,
    report,
    whole_option,
)

app = typer.Typer()


@app.command("missrate")
def missrate(
    candidates: Annotated[int, whole_option("C: keywords that are searched.")],
    top: Annotated[int, whole_option("N: keywords that are wanted.")],
    per_thread: Annotated[int, whole_option("I: keywords that a thread selects from.")],
    queue: Annotated[int, option("q: keywords that a thread keeps.")] = 1,
    most: Annotated[int, option("The largest l of the table.", min=0)] = 10,
    as_json: AsJson = False,
) -> None:
    """Probability that the published selection misses at most l of the top N, and its expected recall."""
    from rbegir.search.missrate import certificate

    found = certificate(candidates, top, per_thread, queue, most=most)
    report(
        {"p_miss_at_most": list(found.p_miss_at_most), "expected_recall": found.expected_recall},
        as_json,
        ["l", "P(misses ≤ l) %"],
        ([str(misses), f"{100 * p:.6f}"] for misses, p in enumerate(found.p_miss_at_most)),
        caption=f"expected recall {found.expected_recall:.9f}",
    )


@app.command("plan")
def plan(
    keywords: Annotated[int, whole_option("Keywords to search.")],
    latency_ms: Annotated[float, option("99 % of the queries must be answered within this time.")],
    qps: Annotated[float, option("Queries per second.")],
    k: Annotated[int, option("Hits per query.", "-k", "--k")] = 1000,
    bytes_per_keyword: Annotated[int, option("Bytes per code.")] = 16,
    replicas: Annotated[int, option("Replicas of every shard, whatever the load.")] = 1,
    machine: Annotated[
        str | None, option("Plan for this measured kind of machine only; default: the best of all.")
    ] = None,
    round_trip_ms: Annotated[float, option("Round trip between two machines of the cluster, in ms.")] = 0.2,
    network_gbit: Annotated[float, option("Network bandwidth of a machine, in Gbit/s.")] = 25.0,
    client_cores: Annotated[int, option("Cores of a machine that sends queries and merges hits.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Machines, memory, latency and the binding requirement, from measured figures and simulated delays."""
    from rbegir.lab.plan import Wish
    from rbegir.lab.plan import plan as make_plan

    wish = Wish(
        keywords=keywords,
        latency_ms=latency_ms,
        qps=qps,
        k=k,
        bytes_per_keyword=bytes_per_keyword,
        replicas=replicas,
        round_trip_ms=round_trip_ms,
        network_gbit=network_gbit,
        client_cores=client_cores,
    )
    found = make_plan(wish, machine=machine)
    if as_json:
        print_json(found)
        return
    _show_plan(found)


def _show_plan(found: dict[str, Any]) -> None:
    print(found["why"])
    print_table(
        ["machine", "how many", "shards × copies", "memory per machine", "p50 ms", "p99 ms", "bound by"],
        (
            [
                option["machine"],
                f"{option['machines']:,}",
                f"{option['shards']:,} × {option['groups']:,}",
                f"{option['memory_bytes_per_machine'] / 1e9:.1f} GB",
                f"{option['latency_ms']['p50']:.2f}",
                f"{option['latency_ms']['p99']:.2f}",
                option["bound_by"],
            ]
            for option in found["options"]
        ),
    )
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
        ([f"{shards:,}", f"{plain[shards]:.2f}", f"{hedged[shards]:.2f}"] for shards in plain),
        title="extra latency of the slowest shard",
    )
    print_table(
        ["constant", "value", "source"],
        (
            [name, f"{constant['value']:.4g} {constant['unit']}", constant["source"]]
            for name, constant in found["constants"].items()
        ),
    )


@app.command("reproduce")
def reproduce(
    tables: Annotated[
        list[str] | None, typer.Argument(help="1 to 7, and bytes; all if none is given.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        option(
            "Folder with redirects.*, titles.* and, optionally, entity_labels.*; the shipped sample if "
            "not given."
        ),
    ] = None,
    out: Annotated[Path, option("Where runs, results and the report are kept.")] = Path("rbegir-tables"),
    rows: Annotated[list[str] | None, option("Make this row alone, repeat for more.")] = None,
    seeds: Annotated[int | None, option("Runs per row.", show_default="3, small: 1")] = None,
    device: TorchDevice = "auto",
    small: Annotated[bool, option("Few pairs and short trainings: minutes on a CPU.", "--small")] = False,
    workers: Annotated[int, option("Runs at the same time on one device.", min=1)] = 1,
    together: Annotated[
        int, option("Models that each of them trains side by side, on the same batches.", min=1)
    ] = 1,
    seconds: Annotated[float | None, option("Start no run that would end later than this.")] = None,
    report: Annotated[list[Path] | None, option("Train nothing: write the report of these results.")] = None,
    as_json: Annotated[bool, option("Print the tables as one JSON list to stdout.", "--json")] = False,
) -> None:
    """Make the tables of the paper on real data, ours beside theirs, with seeds and spread.

    Runs are kept: an interrupted command resumes where it stopped.
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
