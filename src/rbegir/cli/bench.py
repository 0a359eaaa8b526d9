"""`rbegir bench`: speed and accuracy, with peers and the machine's limit in the same run."""

import sys
from pathlib import Path

import typer

from rbegir.cli import options
from rbegir.cli.options import bar, option, report, some, take_texts, whole_option, wholes

app = typer.Typer(no_args_is_help=True, help="Speed, with peers and the machine's limit in the same run.")


@app.command()
def scan(
    keywords: str = option("1e6,1e7", "Numbers of keywords."),
    batches: str = option("1,8,64,256", "Queries per search."),
    k: str = option("10,1000", "Hits per query.", "-k", "--k"),
    threads: str = option("1,2", "Threads."),
    device: str = option("cpu", "cpu, or a GPU: cuda, cuda:1."),
    peers: bool = option(
        False,
        "FAISS, turbovec, ScaNN, RaBitQ, usearch and NumKong, or torch on a GPU, in the same run.",
        "--peers",
    ),
    rounds: int = option(7, "Rounds per cell; figures are medians."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Exhaustive search over random codes of 16 bytes."""
    from rbegir.lab.bench import scan as bench

    with bar("scan") as show:
        grid = bench.ScanGrid(
            wholes(keywords), wholes(batches), wholes(k), wholes(threads), device, peers, rounds
        )
        result = bench.run(grid, show)
    peer_names = sorted({name for cell in result["cells"] for name in cell["peers"]})
    columns = ["keywords", "batch", "k", "threads", "ms", "bandwidth_fraction", *peer_names]
    report(result, as_json, columns, [cell | cell["peers"] for cell in result["cells"]])


@app.command()
def encode(
    texts: Path | None = option(None, "Texts to encode: lines or a table; the shipped titles if not given."),
    count: int = option(1_000_000, "At most this many of them."),
    model: Path | None = options.ANY_MODEL,
    preset: str = option("rbe_star", "Preset of the random weights."),
    device: str = option("cpu", "cpu, cuda or cuda:N."),
    threads: int | None = options.THREADS,
    rounds: int = options.ROUNDS,
    peers: bool = option(False, "model2vec and MiniLM in the same run.", "--peers"),
    as_json: bool = options.AS_JSON,
) -> None:
    """Texts per second: split into grams, and encoded by each side."""
    from rbegir.lab.bench.encode import measure
    from rbegir.read.pairs import read_texts
    from rbegir.read.sample import sample_path

    with bar("encode") as show:
        result = measure(
            take_texts(read_texts(texts or sample_path("titles")), count),
            preset_name=preset,
            progress=show,
            **some(locals(), "model", "device", "threads", "rounds", "peers"),
        )
    report(
        result,
        as_json,
        ["cell", "device", "threads", "texts", "texts/s"],
        [
            row | {"cell": row.get("name", row["cell"]), "texts/s": row["texts_per_s"]}
            for row in result["cells"]
        ],
        title=f"{result['model']} on {result['host']['cpu']}, {rounds} rounds",
    )


@app.command()
def train(
    pairs: Path | None = option(None, "Pairs to train on; the shipped sample if not given."),
    preset: str = option("rbe_star", "Preset to train."),
    device: str = options.TORCH_DEVICE,
    batch_size: int | None = options.BATCH_SIZE,
    negatives: str = option("in_batch", "in_batch, or a number of negatives per pair."),
    rows: int | None = option(
        None,
        "Pairs per epoch, repeating the file.",
        min=1,
        show_default="all of the file, 4 million on a GPU",
    ),
    epochs: int = option(5, "Epochs to time after a first one.", min=1),
    query_column: str = options.QUERY_COLUMN,
    keyword_column: str = options.KEYWORD_COLUMN,
    as_json: bool = options.AS_JSON,
) -> None:
    """Train for a few epochs: pairs per second, and where the time of a step goes."""
    from rbegir.lab.bench.train import measure
    from rbegir.read.pairs import read_pairs
    from rbegir.read.sample import sample_path

    result = measure(
        read_pairs(pairs or sample_path("train"), query_column=query_column, keyword_column=keyword_column),
        negatives=int(negatives) if negatives.isdigit() else negatives,
        **some(locals(), "preset", "device", "batch_size", "rows", "epochs"),
    )
    low, high = result["spread"]
    floors = result["floor_ms"]
    parts = [
        {"part": part, "ms": ms, "floor ms": floors.get(part)} for part, ms in result["parts_ms"].items()
    ]
    step = {"part": "step", "ms": result["step_ms"], "floor ms": sum(floors.values())}
    report(
        result,
        as_json,
        ["part", "ms", "floor ms"],
        [*parts, step],
        title=f"{result['preset']} on {result['host']['device']}, batches of {result['batch_size']:,}",
        caption=f"{result['pairs_per_s']:,.0f} pairs/s ({low:,.0f} to {high:,.0f})",
    )


@app.command()
def accuracy(
    vectors: Path = option(..., "Vectors to store: a .npy file [count, dims], .fvecs or .bvecs."),
    queries: Path | None = option(None, "Query vectors; drawn from the others if not given."),
    bits: str = option("2", "Budgets in bits per dimension, with commas; '' for none."),
    byte_budgets: str = option("", "Budgets in bytes, with commas.", "--bytes"),
    seeds: int = option(1, "Runs with other random choices.", min=1),
    methods: str = option("", "Methods, with commas.", show_default="all"),
    count: int = option(1000, "Number of queries.", "--queries-count", min=1),
    train_rows: int = option(100_000, "Rows that methods learn from.", min=2),
    search_rows: int | None = option(None, "Rows that are searched.", min=1, show_default="all others"),
    apart: bool = option(
        True, "Learn from rows that are not searched, or from those that are.", "--apart/--among"
    ),
    budget: float | None = option(None, "Seconds after which no row is started."),
    out: Path | None = option(None, "JSON file, written after every row; rows it holds are kept."),
    about: str = option("", "What the vectors are, for the file."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Recall of the float vectors' true top 10 and 100, and of the best one, at equal bytes, beside peers."""
    from rbegir.lab.bench.accuracy import METHODS, measure
    from rbegir.read.vectors import map_vectors

    with bar("accuracy") as show:
        result = measure(
            map_vectors(vectors),
            None if queries is None else map_vectors(queries),
            bits=wholes(bits),
            byte_budgets=wholes(byte_budgets),
            methods=tuple(methods.split(",")) if methods else METHODS,
            query_count=count,
            budget_s=budget,
            progress=show,
            **some(locals(), "seeds", "train_rows", "search_rows", "apart", "out", "about"),
        )
    used = result["vectors"]
    report(
        result,
        as_json,
        ["method", "bytes", "recall@10", "± 95 %", "recall@100", "recall@1"],
        [
            row | {"± 95 %": row["recall@10"]["half_width"] if row["seeds"] > 1 else None}
            for row in sorted(
                result["summary"], key=lambda row: (row["budget_bytes"], -row["recall@10"]["mean"])
            )
        ],
        title="no row measured"
        if used is None
        else f"{used['count']:,} vectors of {used['dims']}, {used['queries']:,} queries",
    )


@app.command()
def ann(
    data: Path = typer.Argument(..., help="Data set: .hdf5 (with h5py) or .npz of train, test, neighbors."),
    k: int = option(10, "Neighbours per query.", "-k"),
    planes: str = option("1,2,4,8", "Planes of a query, several with commas."),
    n: int | None = option(None, "Dimension of the codes.", show_default="that of the vectors"),
    keyword_planes: int = option(2, "Bits per dimension of a stored vector."),
    metric: str | None = option(
        None, "angular, euclidean or ip.", show_default="as the file says, else angular"
    ),
    threads: int = option(1, "Threads; ann-benchmarks uses one.", min=1),
    rounds: int = option(3, "Rounds; speeds are medians.", min=1),
    as_json: bool = options.AS_JSON,
) -> None:
    """Recall of the true neighbours and queries per second, one by one and in a batch."""
    from rbegir.lab.annbench import run

    parameters = {"keyword_planes": keyword_planes, "threads": threads} | ({} if n is None else {"n": n})
    result = run(
        data,
        k=k,
        planes=wholes(planes),
        parameters=parameters,
        rounds=rounds,
        metric=metric,
        progress=lambda what: print(what, file=sys.stderr),
    )
    report(
        result,
        as_json,
        {
            "algorithm": "algorithm",
            "recall": "recall",
            "queries/s": "qps",
            "in a batch": "batch_qps",
            "bytes": "bytes_per_vector",
        },
        result["rows"],
        title=result["dataset"],
    )


@app.command()
def serve(
    keywords: int = whole_option(1_000_000, "Keywords in the index."),
    k: int = option(100, "Hits per search.", "-k", "--k", min=1),
    clients: int = option(64, "Concurrent clients, each in a closed loop.", min=1, max=1000),
    seconds: float = option(60.0, "Load of each setting, split over the rounds.", min=0.1),
    rounds: int = option(3, "Rounds of each setting, in turns.", min=1),
    writes: float = option(0.05, "Share of requests that write.", min=0, max=1),
    model: Path | None = options.ANY_MODEL,
    peers: bool = option(
        False, "Qdrant's core, LanceDB, sqlite-vec and Milvus Lite, in process, in the same run.", "--peers"
    ),
    peer_seconds: float = option(10.0, "Load of each peer.", min=0.1),
    as_json: bool = options.AS_JSON,
) -> None:
    """Load a real service over loopback, and check that every acknowledged write is kept."""
    from rbegir.lab.bench import serve as bench

    with bar("serve") as show:
        names = ("keywords", "k", "clients", "seconds", "rounds", "writes", "model", "peers", "peer_seconds")
        result = bench.run(**some(locals(), *names), progress=show)
    kept = result["integrity"]
    settings = [{"": name, **result[name]} for name in bench.SETTINGS]
    in_process = [{"": f"{name}, in process", **peer} for name, peer in result["peers"].items()]
    report(
        result,
        as_json,
        {
            "": "",
            "searches/s": "searches_per_s",
            "p50 ms": "p50_ms",
            "p99 ms": "p99_ms",
            "write p50 ms": "write_p50_ms",
            "queries per scan": "queries_a_scan",
            "failed": "failed",
        },
        [*settings, *in_process],
        caption=f"batched / unbatched {result['ratio']['median']:.1f}×; "
        f"the generator alone {result['generator']['searches_per_s']:,.0f}/s; "
        f"{kept['acknowledged_writes']:,} writes, {kept['lost']} lost, {kept['phantom']} phantom, "
        f"{result['errors']} errors",
    )
    if result["errors"] or kept["lost"] or kept["phantom"]:
        raise typer.Exit(1)


@app.command()
def cluster(
    keywords: int = whole_option(8_000_000, "Keywords of the scaling part."),
    seconds: float = option(120.0, "Length of each of the two fault runs."),
    every: float = option(4.0, "Seconds between kills."),
    clients: int = option(4, "Threads that search during the fault runs."),
    rounds: int = option(30, "Rounds of the timed parts; figures are medians."),
    faults: bool = option(False, "Kill shards under load instead of measuring speed.", "--faults"),
    as_json: bool = options.AS_JSON,
) -> None:
    """Overhead and scaling of a cluster on this machine, or, with --faults, what it survives."""
    from rbegir.lab.bench import cluster as bench

    with bar("cluster") as show:
        if faults:
            result = bench.survival(seconds=seconds, every=every, clients=clients, progress=show)
            columns, rows = ["replicas", "kills", "asked", "wrong", "failed"], result["faults"]
        else:
            result = bench.speed(keywords=keywords, rounds=rounds, progress=show)
            columns, rows = ["call_ms", "speedup"], [{**result["overhead"], **result["scaling"]}]
    report(result, as_json, columns, rows)


@app.command()
def hits(
    tasks: str = option("sample", "Of titles, sample and packages:PAIRS."),
    data: Path | None = option(None, "Folder of the task titles, as `rbegir reproduce` takes it."),
    packages: Path | None = option(None, "Folder that tools/packages.py wrote."),
    seeds: int = option(3, "Trainings per task.", min=1),
    device: str = options.TORCH_DEVICE,
    as_json: bool = options.AS_JSON,
) -> None:
    """Recall of hits as a user gets them: codes, reranked, and methods that need no training."""
    from rbegir.lab.bench import hits as bench

    with bar("hits") as show:
        where = some(locals(), "data", "packages", "seeds", "device")
        result = bench.run(tasks.split(","), **where, say=lambda line: show(0, line))
    report(result, as_json, ["task", "method", "recall@1", "recall@10", "recall@100"], result["rows"])


@app.command()
def costs(
    device: str = option("cuda", "A GPU: cuda, cuda:1."),
    rounds: int = options.ROUNDS,
    as_json: bool = options.AS_JSON,
) -> None:
    """Milliseconds of every GPU scan for 10⁹ keywords, by shape.

    Searches choose by the table that comes with the package, measured on one H200. For another card, save its
    table to a file and name it in RBEGIR_GPU_COSTS.
    """
    from rich.console import Console

    import rbegir.search.gpu.backend  # noqa: F401  says what to install where torch or triton is missing
    from rbegir.lab.bench.scan_gpu import costs as measure

    with Console(stderr=True).status("measuring") as status:
        result = measure(device, rounds, lambda what: status.update(what))
    figures = "ms of 1, 2, … 8 query planes, or of a pass and of a chunk of queries"
    rows = [
        {"kernel": kernel, "code": shape, figures: ", ".join(f"{ms:.2f}" for ms in found)}
        for kernel, shapes in result["costs"].items()
        for shape, found in shapes.items()
    ]
    report(result, as_json, ["kernel", "code", figures], rows)
