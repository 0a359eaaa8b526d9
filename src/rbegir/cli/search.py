"""`rbegir search`, `join`, `mine`, `serve` and `mcp`: search, join, find hard negatives, serve."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import rbegir
from rbegir.base.progress import reported
from rbegir.cli import options
from rbegir.cli.options import needing, option, print_json, shown, some, tell
from rbegir.errors import InputError

if TYPE_CHECKING:
    from rbegir.search.hits import Hits
    from rbegir.serve.catalog import Catalog
    from rbegir.serve.served import ServedIndex

app = typer.Typer()

TEXT_WIDTH = 24  # characters of the texts of hits, however many attributes stand beside them


@app.command("search")
def search(
    index: str = options.INDEX_ADDRESS,
    queries: list[str] = typer.Argument(
        ..., metavar="QUERY…", help="Texts to search for; - reads one per line from standard input."
    ),
    k: int | None = option(None, "Hits per query; by default 10, or with --min-score all.", "-k"),
    min_score: float | None = option(None, "Only hits whose code score is at least this."),
    after: list[str] | None = option(
        None, "Cursor of a page of hits, to get the next page; one per query.", metavar="CURSOR"
    ),
    newer: list[Path] | None = option(
        None,
        "Index of a newer generation, searched together with INDEX; repeat for more, oldest first.",
        metavar="INDEX",
    ),
    where: str | None = option(None, "Filter, such as: price < 10 and lang = 'en' and not sold"),
    must: str | None = option(None, "Only texts with these words side by side."),
    tenant: str | None = option(None, "Only keywords of this tenant."),
    item: str | None = option(None, "One hit per item, which this attribute names.", metavar="COLUMN"),
    device: str = options.SEARCH_DEVICE,
    mode: str = option("exact", "exact, or paper: the published algorithm."),
    planes: int | None = option(None, "Search with this many planes first, refine the best with the others."),
    rerank: bool | None = options.RERANK,
    candidates: int | None = option(
        None, "Keywords by code that are reranked; up to half as many by their words are added.", min=1
    ),
    why: bool = option(False, "Show why each reranked hit is there.", "--why"),
    columns: str | None = option(
        None, "Attributes to show, such as price,lang; '' for none.", show_default="all", metavar="NAMES"
    ),
    threads: int | None = options.THREADS,
    as_json: bool = option(False, "Print one JSON list to stdout.", "--json"),
) -> None:
    """Search an index: every keyword is scored, the best k of each query are shown.

    With --newer, several generations (`rbegir upgrade`) are searched by the query code of the newest model.
    """
    from rbegir.base.arguments import tenant_named
    from rbegir.search.hits import Cursor

    if queries == ["-"]:
        queries = [line for line in sys.stdin.read().splitlines() if line.strip()]
    opened: rbegir.Index | rbegir.Generations
    with contextlib.ExitStack() as open_:
        devices = device.split(",")
        if newer:
            opened = rbegir.Generations([index, *newer], device=devices, read_only=True, threads=threads)
            open_.enter_context(opened)
        else:
            progress = open_.enter_context(reported(None, "uploading to the GPU"))
            opened = rbegir.Index.open(index, devices, read_only=True, threads=threads, progress=progress)
            open_.enter_context(opened)
        hits = opened.search(
            queries,
            10 if k is None and min_score is None else k,
            tenant=tenant_named(tenant, opened.info()),
            after=Cursor.join([Cursor.read(text) for text in after]).text() if after else None,
            **some(locals(), "where", "must", "item", "min_score"),
            **some(locals(), "mode", "planes", "rerank", "candidates", "why"),
        )
    if as_json:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        escaped = not encoding.lower().startswith("utf")
        print_json(hits_as_json(queries, hits), default=str, ensure_ascii=escaped)
    else:
        _show(queries, hits, options.names_in(columns))


def hits_as_json(queries: list[str], hits: Hits) -> list[dict[str, Any]]:
    """The results as a service gives them, each with its cursor; `attributes` only where there are some."""
    from rbegir.search.hits import cut
    from rbegir.wire.search import cursor_of, json_results

    results = json_results([hits], queries)
    for number, result in enumerate(results):
        for hit in result["hits"] if hits.attributes is None else ():
            del hit["attributes"]
        if (cursor := cursor_of([cut(hits, number, 1, None)])) is not None:
            result["cursor"] = cursor
    return results


def _show(queries: list[str], hits: Hits, chosen: list[str] | None) -> None:
    """Tables for people, with the chosen attributes or all of them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for query, found in zip(queries, hits, strict=True):
        known = list(found[0].attributes or {}) if found else []
        names = known if chosen is None else chosen
        unknown = [name for name in names if found and name not in known]
        if unknown:
            listed = ", ".join(known) or "none"
            raise InputError(f"hits have no attribute {unknown[0]!r}", hint=f"--columns: {listed}")
        table = Table("", "score", "id", title=Text(shown(query)), title_justify="left", box=None)
        table.add_column("text", min_width=TEXT_WIDTH)
        for name in names:
            table.add_column(Text(shown(name)))
        for rank, hit in enumerate(found, 1):
            values = [hit.id, hit.text, *((hit.attributes or {})[name] for name in names)]
            cells = [Text("" if value is None else shown(value)) for value in values]
            if hit.why is not None:
                cells[1].append(f"\n{hit.why}", "dim")  # below the text, which needs the width
            table.add_row(str(rank), f"{hit.score:.4f}", *cells)
        console.print(table)
    if hits.recall is not None:
        console.print(f"recall of the search by fewer planes: {hits.recall:.4f}")
    if hits.certificate is not None:
        console.print(f"expected recall of the published algorithm: {hits.certificate.expected_recall:.6f}")


@app.command("join")
def join(
    index: Path = options.INDEX_PATH,
    out: Path = option(..., "Parquet file to write.", metavar="FILE"),
    other: Path | None = typer.Argument(
        None,
        metavar="[OTHER]",
        help="Index whose keywords are the queries; by default those of INDEX itself.",
    ),
    k: int | None = option(None, "Neighbors per keyword.", "-k", "--k", min=1),
    min_score: float | None = option(None, "Lowest score of a pair."),
    where: str | None = option(
        None, "Only keywords of INDEX that pass this filter; without OTHER they are the queries, too."
    ),
    tenant: str | None = option(None, "Only keywords of this tenant, on both sides."),
    texts: bool = option(False, "Also write the texts of both sides."),
    device: str = options.SEARCH_DEVICE,
    threads: int | None = options.THREADS,
    as_json: bool = options.AS_JSON,
) -> None:
    """Find the best neighbors of every keyword, exactly: by count (--k), by score (--min-score) or both.

    Each keyword of OTHER is searched in INDEX, as it is stored. Without OTHER the neighbors are the other
    keywords of INDEX. One row is written per pair: id, neighbor_id, rank, score. A run that is interrupted is
    continued by the same command.
    """
    from rbegir.base.arguments import tenant_named
    from rbegir.index.join import write_pairs
    from rbegir.search.backend import open_backend

    with contextlib.ExitStack() as opened:
        keywords = opened.enter_context(rbegir.Index.open(index, read_only=True))
        queries = None if other is None else opened.enter_context(rbegir.Index.open(other, read_only=True))
        own = tenant_named(tenant, keywords.info())
        asked = keywords.joining(queries, k, min_score, texts=texts, where=where, tenant=own)
        backend = open_backend(device.split(","), *keywords.snapshot.manifest.shape, threads)
        facts = write_pairs(out, asked, backend, opened.enter_context(reported(None, "joining")))
    tell(facts, as_json, f"{out}: {facts['pairs']:,} pairs of {facts['queries']:,} keywords")


@app.command("mine")
def mine(
    source: Path = typer.Argument(
        ..., metavar="INDEX|MODEL", help="Directory of an index, or of a trained model."
    ),
    pairs: Path = options.PAIRS,
    out: Path = option(..., "Parquet file to write.", metavar="FILE"),
    k: int = option(10, "Negatives per query.", "-k", "--k", min=1),
    query_column: str = options.QUERY_COLUMN,
    keyword_column: str = options.KEYWORD_COLUMN,
    device: str = options.SEARCH_DEVICE,
    threads: int | None = options.THREADS,
    strict: bool = options.STRICT,
    as_json: bool = options.AS_JSON,
) -> None:
    """Find hard negatives: for each query of the pairs the best keywords that were not clicked for it.

    They are searched exactly, by codes: given an INDEX, among its keywords; given a MODEL, among those of
    the pairs. One row is written per negative: query, keyword, id, rank, score.
    """
    import pyarrow.parquet as pq

    from rbegir.base import disk
    from rbegir.index.join import new_parquet
    from rbegir.index.mine import mining
    from rbegir.read.pairs import read_pairs

    path, count = new_parquet(out), 0
    stream = read_pairs(
        pairs, query_column=query_column, keyword_column=keyword_column, weight_column=None, strict=strict
    )
    with (
        mining(source, stream, k, device=device.split(","), threads=threads) as job,
        disk.explained("write", path),
        disk.staged(path) as stage,
        reported(None, "mining") as report,
    ):
        with pq.ParquetWriter(stage, job.schema) as writer:
            for batch in job.batches(report):
                writer.write_batch(batch)
                count += batch.num_rows
        facts = {"negatives": count, "queries": job.clicks.num_rows, "keywords": len(job.index)}
    options.tell_skipped(stream, f"{stream.name}: ")
    tell(facts, as_json, f"{out}: {count:,} negatives of {facts['queries']:,} queries")


def named_indexes(given: list[str]) -> dict[str, str]:
    """NAME=INDEX arguments → indexes by name; a single one may have no name, which is then empty."""
    found: dict[str, str] = {}
    for argument in given:
        named = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=(.+)", argument)
        name, path = named.groups() if named else ("", argument)
        if name in found or (not name and len(given) > 1):
            raise InputError(
                f"each of several indexes needs a name of its own, got {argument!r}",
                hint="rbegir serve shop=shop.rbe ads=ads.rbe",
            )
        if path in found.values():
            raise InputError(f"{path} is given twice", hint="give every index one name")
        found[name] = path
    return found


@app.command("serve")
def serve(
    indexes: list[str] = typer.Argument(
        ...,
        metavar="INDEX…",
        help="Directory or URL of an index; several as NAME=INDEX, the first is the default; or a "
        "folder of indexes.",
    ),
    host: str = option("127.0.0.1", "Address to listen on; any but loopback needs tokens."),
    port: int = option(8080, "Port; 0 takes a free one.", min=0, max=65535),
    device: str = options.SEARCH_DEVICE,
    threads: int | None = options.THREADS,
    cluster: str | None = options.CLUSTER,
    shards: int | None = option(None, "CPU shards of the cluster.", min=1),
    replicas: int = option(1, "Replicas of every shard of the cluster.", min=1),
    read_only: bool = option(False, "Never change the index; follow its writer instead.", "--read-only"),
    read_token_file: Path | None = option(None, "File with the token for reading; else RBEGIR_READ_TOKEN."),
    write_token_file: Path | None = option(None, "File with the token for changes; else RBEGIR_WRITE_TOKEN."),
    cors_origin: list[str] | None = option(None, "Web origin that may call the API; may be repeated."),
    max_batch: int = option(128, "Queries scored in one scan; 1: no batching.", min=1),
    max_waiting: int = option(4096, "Queries that may wait; more are refused with 503.", min=1),
    max_client_requests: int = option(
        0, "Concurrent requests per client (token or address); further ones get 429. 0: no limit.", min=0
    ),
    max_write_batch: int = option(4096, "Most keywords in one durable write; 1: each request alone.", min=1),
    max_k: int = option(10_000, "Hits per query.", min=1),
    max_body_mb: int = option(16, "Size of a body, in MiB.", min=1),
    timeout: float = option(30.0, "Deadline of a request, in seconds.", min=0.001),
    drain_delay: float = option(0.0, "Seconds after SIGTERM in which connections are still accepted.", min=0),
    compact_deleted: float = option(
        0.25, "Compact when this share of the rows is deleted; 0: never.", min=0, max=1
    ),
    access_log: bool = option(True, "Log a line for every request."),
    log_queries: bool = option(False, "Log query texts.", "--log-queries"),
) -> None:
    """Serve one or more indexes over HTTP, with a browser page."""
    from rich.console import Console

    with needing("the service", "serve"):
        from rbegir.serve.app import create_app
        from rbegir.serve.catalog import ALIASES, IndexFolder, indexes_in
        from rbegir.serve.server import Server, bind, check_exposure
    from rbegir.serve.auth import load_token
    from rbegir.serve.settings import LOOPBACK_NAMES, Settings

    named = named_indexes(indexes)
    if cluster is not None and len(named) > 1:
        raise InputError("a cluster serves one index", hint="start a service per index")
    read_only = read_only or (cluster is None and any("://" in path for path in named.values()))  # of copies
    read_token, write_token = load_token("read", read_token_file), load_token("write", write_token_file)
    settings = Settings(
        max_body_bytes=max_body_mb << 20,
        timeout_s=timeout,
        drain_delay_s=drain_delay,
        devices=tuple(device.split(",")),
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=() if read_token or write_token else LOOPBACK_NAMES,
        **some(locals(), "read_token", "write_token", "read_only", "access_log", "log_queries"),
        **some(locals(), "max_batch", "max_waiting", "max_client_requests", "max_write_batch", "max_k"),
        compact_deleted=compact_deleted,
    )
    check_exposure(host, settings)
    say = Console(stderr=True, highlight=False).print

    def opened(path: str | Path) -> ServedIndex:
        if cluster is None:
            return rbegir.Index.open(path, device.split(","), threads=threads, read_only=read_only)
        devices = "auto" if shards is None else shards
        return rbegir.Cluster.open(path, options.cluster_address(cluster), replicas, devices, threads=threads)

    with contextlib.ExitStack() as unless_started:
        only = named.get("")
        if only is not None and ((Path(only) / ALIASES).exists() or indexes_in(Path(only))):
            application = create_app(IndexFolder(Path(only), opened), settings)
        else:
            engines: dict[str, ServedIndex] = {}
            for name, path in named.items():
                engines[name] = opened(path)
                unless_started.callback(engines[name].close)
            application = create_app(engines if only is None else engines[""], settings)
        catalog: Catalog = application.state.catalog
        unless_started.callback(catalog.close)
        catalog.prepare()
        listener = bind(host, port)
        unless_started.pop_all()
    shown_host = f"[{host}]" if ":" in host else host
    address = f"http://{shown_host}:{listener.getsockname()[1]}"

    def ready() -> None:
        several = "" if only is not None and catalog.folder is None else f"{len(catalog.services)} indexes, "
        keywords = sum(len(service.index) for service in catalog.distinct)
        say(f"serving {several}{keywords:,} keywords at [bold]{address}[/] (process {os.getpid()})")
        say(f"open {address}/ in a browser, or ask: curl -s {address}/v1/index", soft_wrap=True)

    Server(application, ready).listen(listener)


@app.command("mcp")
def mcp(
    index: str = options.INDEX_ADDRESS,
    tenant: str | None = option(None, "The tenant whose keywords are shown; must be given if there are any."),
    device: str = options.SEARCH_DEVICE,
    threads: int | None = options.THREADS,
) -> None:
    """Let an assistant search an index: a server for the Model Context Protocol on standard input and output.

    It has two tools, search and fetch, and never changes the index.
    """
    from rbegir.adapters.mcp import McpServer
    from rbegir.base.arguments import tenant_named
    from rbegir.encode.encoder import takes_vectors

    with rbegir.Index.open(index, device.split(","), read_only=True, threads=threads) as opened:
        if takes_vectors(opened.model):
            raise InputError(
                f"{index} was made with a Binarizer, so it is searched by vectors, and assistants send texts",
                hint="build an index of texts with a model: rbegir index build",
            )
        McpServer(opened, tenant_named(tenant, opened.info())).serve(sys.stdin.buffer, sys.stdout.buffer)
