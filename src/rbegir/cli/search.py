"""`rbegir search` and `serve`: the best keywords for some texts, here or over HTTP."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbegir.cli.options import (
    ClusterAddress,
    IndexPath,
    SearchDevice,
    Threads,
    cluster_address,
    needing,
    option,
    print_json,
    shown,
)

if TYPE_CHECKING:
    from rbegir.search.hits import Hits
    from rbegir.serve.served import ServedIndex

app = typer.Typer()


@app.command("search")
def search(
    index: IndexPath,
    queries: Annotated[list[str], typer.Argument(metavar="QUERY…", help="Texts to search for.")],
    k: Annotated[int, option("Hits per query.", "-k")] = 10,
    newer: Annotated[
        list[Path] | None,
        option(
            "A newer generation, searched as one with the first INDEX; several: oldest first.",
            metavar="INDEX",
        ),
    ] = None,
    where: Annotated[str | None, option("Filter, such as: price < 10 and lang = 'en' and not sold")] = None,
    device: SearchDevice = "cpu",
    mode: Annotated[str, option("exact, or paper: the published algorithm.")] = "exact",
    planes: Annotated[
        int | None, option("Search with this many planes first, refine the best with the others.")
    ] = None,
    rerank: Annotated[
        bool | None,
        option(
            "Order the first candidates by their texts; by default where the model can.",
            "--rerank/--no-rerank",
        ),
    ] = None,
    candidates: Annotated[int | None, option("How many keywords get that second look.", min=1)] = None,
    threads: Threads = None,
    as_json: Annotated[bool, option("Print one JSON list to stdout.", "--json")] = False,
) -> None:
    """Search an index: every keyword is scored, the best k of each query are shown.

    With --newer, several generations (`rbegir upgrade`) are searched by the query code of the newest model.
    """
    from rbegir.index.generations import Generations
    from rbegir.index.store import Index

    opened: Index | Generations
    with contextlib.ExitStack() as open_:
        devices = device.split(",")
        if newer:
            opened = Generations([index, *newer], device=devices, read_only=True, threads=threads)
            open_.enter_context(opened)
        else:
            uploaded = open_.enter_context(_upload_bar())
            opened = Index.open(index, devices, read_only=True, threads=threads, progress=uploaded)
            open_.enter_context(opened)
        hits = opened.search(
            queries, k, where=where, mode=mode, planes=planes, rerank=rerank, candidates=candidates
        )
    if as_json:
        print_json(_as_json(queries, hits), default=str, ensure_ascii=False)
    else:
        _show(queries, hits)


@contextlib.contextmanager
def _upload_bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar for copying an index to GPUs, begun when there is something to copy."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("uploading to the GPU")

    def show(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def _as_json(queries: list[str], hits: Hits) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for query, found in zip(queries, hits, strict=True):
        listed: list[dict[str, Any]] = []
        for hit in found:
            row = {"id": hit.id, "score": hit.score, "code_score": hit.code_score, "text": hit.text}
            listed.append(row)
            if hit.attributes is not None:
                listed[-1]["attributes"] = dict(hit.attributes)
        result: dict[str, Any] = {"query": query, "hits": listed}
        if hits.recall is not None:
            result["recall"] = hits.recall
        if hits.certificate is not None:
            result["expected_recall"] = hits.certificate.expected_recall
        results.append(result)
    return results


def _show(queries: list[str], hits: Hits) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for query, found in zip(queries, hits, strict=True):
        names = list(found[0].attributes or {}) if found else []
        table = Table("", "score", "id", "text", title=Text(query), title_justify="left", box=None)
        for name in names:
            table.add_column(Text(shown(name)))
        for rank, hit in enumerate(found, 1):
            values = [hit.id, hit.text, *((hit.attributes or {})[name] for name in names)]
            cells = [Text("" if value is None else shown(value)) for value in values]
            table.add_row(str(rank), f"{hit.score:.4f}", *cells)
        console.print(table)
    if hits.recall is not None:
        console.print(f"recall of the search by fewer planes: {hits.recall:.4f}")
    if hits.certificate is not None:
        console.print(f"expected recall of the published algorithm: {hits.certificate.expected_recall:.6f}")


@app.command("serve")
def serve(
    index: Annotated[
        str, typer.Argument(metavar="INDEX", help="Directory of the index; with --cluster also a URI.")
    ],
    host: Annotated[str, option("Address to listen on; beyond loopback tokens are needed.")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 takes a free one.", min=0, max=65535)] = 8080,
    device: SearchDevice = "cpu",
    threads: Threads = None,
    cluster: ClusterAddress = None,
    shards: Annotated[int | None, option("CPU shards of the cluster.", min=1)] = None,
    replicas: Annotated[int, option("Replicas of every shard of the cluster.", min=1)] = 1,
    read_only: Annotated[
        bool, option("Never change the index; follow its writer instead.", "--read-only")
    ] = False,
    read_token_file: Annotated[
        Path | None, option("File with the token for reading; else RBEGIR_READ_TOKEN.")
    ] = None,
    write_token_file: Annotated[
        Path | None, option("File with the token for changes; else RBEGIR_WRITE_TOKEN.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, option("Web origin that may call the API; may be repeated.")
    ] = None,
    max_batch: Annotated[int, option("Queries scored in one scan; 1: no batching.", min=1)] = 128,
    max_waiting: Annotated[int, option("Queries that may wait; more are refused with 503.", min=1)] = 4096,
    max_write_batch: Annotated[
        int, option("Keywords in one durable write; 1: every request alone.", min=1)
    ] = 4096,
    max_k: Annotated[int, option("Hits per query.", min=1)] = 10_000,
    max_body_mb: Annotated[int, option("Size of a body, in MiB.", min=1)] = 16,
    timeout: Annotated[float, option("Deadline of a request, in seconds.", min=0.001)] = 30.0,
    drain_delay: Annotated[
        float, option("Seconds after SIGTERM in which connections are still accepted.", min=0)
    ] = 0.0,
    compact_deleted: Annotated[
        float, option("Compact when this share of the rows is deleted; 0: never.", min=0, max=1)
    ] = 0.25,
    access_log: Annotated[bool, option("A line for every request.")] = True,
    log_queries: Annotated[bool, option("Query texts in the log.", "--log-queries")] = False,
) -> None:
    """Serve an index over HTTP, with a page to look at it."""
    from rich.console import Console

    with needing("the service", "serve"):
        from rbegir.serve.app import create_app
        from rbegir.serve.server import Server, bind, check_exposure
    from rbegir.index.store import Index
    from rbegir.serve.auth import load_token
    from rbegir.serve.settings import LOOPBACK_NAMES, Settings

    read_token, write_token = load_token("read", read_token_file), load_token("write", write_token_file)
    settings = Settings(
        max_batch=max_batch,
        max_waiting=max_waiting,
        max_write_batch=max_write_batch,
        max_k=max_k,
        max_body_bytes=max_body_mb << 20,
        timeout_s=timeout,
        drain_delay_s=drain_delay,
        compact_deleted=compact_deleted,
        read_token=read_token,
        write_token=write_token,
        read_only=read_only,
        devices=tuple(device.split(",")),
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=() if read_token or write_token else LOOPBACK_NAMES,
        access_log=access_log,
        log_queries=log_queries,
    )
    check_exposure(host, settings)
    say = Console(stderr=True, highlight=False).print
    engine: ServedIndex
    if cluster is None:
        engine = Index.open(index, device.split(","), threads=threads, read_only=read_only)
    else:
        from rbegir.cluster.client import Cluster

        engine = Cluster.open(
            index, cluster_address(cluster), replicas, "auto" if shards is None else shards, threads=threads
        )
    try:
        application = create_app(engine, settings)
        application.state.service.prepare()
        listener = bind(host, port)
    except BaseException:
        engine.close()
        raise
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listener.getsockname()[1]}"

    def ready() -> None:
        say(f"serving {len(engine):,} keywords at [bold]{address}[/] (process {os.getpid()})")
        say(f"open {address}/ in a browser, or ask: curl -s {address}/v1/index", soft_wrap=True)

    Server(application, ready).listen(listener)
