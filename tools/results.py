"""Writes docs/benchmarks.md and the table of README.md from the committed results; the tests keep them current.

    python tools/results.py

No figure on either page is typed by hand: each is read from a file under benchmarks/results.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
MARKS = ("<!-- results: written by tools/results.py -->\n", "<!-- end of results -->\n")
PEERS = {
    "faiss_pq": "FAISS PQ 4-bit fast-scan",
    "faiss_bin": "FAISS IndexBinaryFlat",
    "faiss_rabitq": "FAISS RaBitQ fast-scan",
    "turbovec": "turbovec 2-bit",
}
Json = dict[str, Any]


def load(name: str) -> Json:
    data: Json = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def find(result: Json, **wanted: int) -> Json:
    (cell,) = (c for c in result["cells"] if all(c[key] == value for key, value in wanted.items()))
    return dict(cell)


def big(number: float) -> str:
    """1,234,567 → 1.23 million."""
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.3g}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def host(result: Json) -> str:
    about = result["host"]
    device = result.get("gpu") or about.get("device", "cpu")
    cores = about.get("cpus") or about.get("cores")
    return f"{about['cpu'] if device == 'cpu' else device}, {cores} CPU cores"


def over_seeds(result: Json, row: str, figure: str) -> tuple[float, float | None]:
    """Mean and standard deviation (None with one seed) of a figure of a row of the reproduction."""
    values = [run["figures"][figure]["value"] for run in result["runs"] if run["row"] == row]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def accuracy_rows(result: Json) -> list[list[str]]:
    """Each model with the default recipe."""
    models = {"rbe_star": 16, "m_5": 16, "m_3": 16, "64x1, 8-plane query": 8, "rbe_3": 24, "m_1": 256}
    figures = ("roc_auc", "recall@1", "recall@10", "recall@100")
    rows = []
    for name, size in models.items():
        found = [over_seeds(result, name, figure) for figure in figures]
        seeds = sum(run["row"] == name for run in result["runs"])
        shown = (f"{mean:.4f}" + (f" ± {spread:.4f}" if spread is not None else "") for mean, spread in found)
        rows.append([f"`{name}`", str(size), *shown, str(seeds)])
    return rows


def quantised(result: Json, name: str, query: str) -> float:
    """Mean recall@10 of a quantiser of m_1's vectors, asked with a precision."""
    return statistics.fmean(
        one["recall@10"]["value"]
        for run in result["runs"]
        if run["row"] == "m_1"
        for one in run["studies"]["quantisers"]
        if (one["name"], one["query"]) == (name, query)
    )


def unguided(train: Json) -> str:
    """Says so if the guide, a second loss that is part of the default recipe, was not there."""
    return "" if train["guide"] else ", without the guide"


def readme() -> str:
    scan, encode, accuracy = load("scan-cpu-peers"), load("encode-cpu"), load("reproduce-full")
    train, fast = load("train-h200"), load("encode-h200")
    one, many = (find(scan, batch=b, k=1000, threads=1) for b in (1, 256))
    few = find(scan, batch=256, k=10, threads=1)
    peer = next(iter(encode["peers"].values()))
    rows = [
        [
            "search 10 million keywords, one query, top 1000, one CPU core",
            f"{one['ms']:.1f} ms, {100 * one['bandwidth_fraction']:.0f} % of the speed of reading them",
            ", ".join(f"{one['ratios'][key]:.1f}× {name}" for key, name in PEERS.items()),
        ],
        [
            "the same, 256 queries at once",
            f"{256e3 / many['ms']:,.0f} queries/s",
            f"{min(many['ratios'].values()):.1f}× the fastest peer "
            f"({min(few['ratios'].values()):.1f}× at top 10)",
        ],
        [
            "encode texts",
            f"{encode['texts_per_s']:,.0f} /s on {encode['host']['cpus']} cores, "
            f"{fast['texts_per_s']:,.0f} /s on an H200",
            f"{encode['texts_per_s'] / peer:,.0f}× MiniLM on the same cores",
        ],
        [
            "train `rbe_star`",
            f"{train['pairs_per_s']:,.0f} pairs/s on an H200{unguided(train)}",
            f"the paper's 175 million pairs: {175e6 / train['pairs_per_s']:.0f} s an epoch",
        ],
    ]
    found = {name: over_seeds(accuracy, name, "recall@10")[0] for name in ("rbe_star", "m_1")}
    rows.append(
        [
            f"find the title of an unseen alias (made by editors, not clicks) among {accuracy['dataset']['corpus']:,} titles",
            f"recall@10 {found['rbe_star']:.3f} with 16 bytes a title",
            f"float vectors of 256 bytes: {found['m_1']:.3f}; FAISS's residual quantiser of them in 16: "
            f"{quantised(accuracy, 'FAISS RQ16x8', '3 bits'):.3f}, with a float query "
            f"{quantised(accuracy, 'FAISS RQ16x8', 'float'):.3f}; [all methods](docs/reproduction.md)",
        ]
    )
    rows += [
        *gpu_rows(load("scan-gpu")),
        serve_row(load("serve")),
        vectors_row(load("accuracy-vectors-minilm")),
    ]
    text = table(["", "rbegir", "beside it"], rows)
    return (
        text
        + "\nPeers ran in the same run on the same machine, tuned, those with codes at 16 bytes a vector. How each figure was "
        "measured: [benchmarks](docs/benchmarks.md).\n"
    )


def gpu_rows(scan: Json) -> list[list[str]]:
    one, many = (find(scan, keywords=1_200_000_000, batch=b) for b in (1, 256))
    most = find(scan, keywords=8_000_000_000, batch=1)
    peer = "torch_float16_topk"
    return [
        [
            "search 1.2 billion keywords, top 1000, one H200, exact",
            f"{one['ms']:.2f} ms ({100 * one['bandwidth_fraction']:.0f} % of its read bandwidth); "
            f"{many['queries_per_s']:,.0f} queries/s in batches of 256",
            f"{one['ratios'][peer]:.0f}× and {many['ratios'][peer]:.0f}× float16 matmul and topk in torch",
        ],
        [
            "search 8 billion keywords (128 GB of codes), one query, the same card",
            f"{most['ms']:.1f} ms",
            "the paper: 31.17 ms for 1.2 billion on four GTX 1080",
        ],
    ]


def serve_row(result: Json) -> list[str]:
    batched, peers = result["batched"], result["peers"]
    return [
        f"serve {result['keywords']:,} keywords over HTTP, top {result['k']}, {result['clients']} clients, "
        f"{100 * result['write_share']:.0f} % durable writes, {result['host']['cpus']} cores",
        f"{batched['searches_per_s']['median']:,.0f} searches/s, p99 {batched['p99_ms']['median']:.0f} ms, "
        f"{result['integrity']['acknowledged_writes']:,} writes, {result['integrity']['lost']} lost",
        f"{peers['lancedb']['ratio']:.0f}× LanceDB in process, {peers['qdrant_local']['ratio']:.0f}× qdrant-client's local "
        f"mode with {peers['qdrant_local']['keywords']:,}",
    ]


def vectors_row(result: Json) -> list[str]:
    found = {row["method"]: row for row in result["summary"]}
    ours = found.pop("binarizer")
    names = {
        "rq": "residual quantiser",
        "pq": "FAISS PQ",
        "rabitq": "FAISS RaBitQ",
        "turbovec": "turbovec",
        "scalar": "rotation and scalar quantiser",
    }
    return [
        "shrink MiniLM vectors of a million titles (1,536 bytes each) to 2 bits a dimension",
        f"recall@10 of the float vectors' hits {ours['recall@10']['mean']:.3f} with {ours['bytes']} bytes",
        ", ".join(
            f"{found[key]['recall@10']['mean']:.3f} {name} ({found[key]['bytes']:.0f} bytes)"
            for key, name in names.items()
        ),
    ]


def gpu_tables(scan: Json) -> list[str]:
    third = {
        c["query_planes"]: c["ms"] for c in scan["cases"] if "query planes" in c["case"] and c["batch"] == 1
    }
    exact = {c["keywords"]: c["ms"] for c in scan["cells"] if c["batch"] == 1}
    turns = " The three were timed in turns." if all("exact_ms" in p for p in scan["paper"]) else ""
    return [
        "## Search on a GPU\n",
        f"{scan['host']['device']}, torch {scan['host']['torch']}, triton {scan['host']['triton']}; the codes of the CPU "
        "benchmark; exact top 1000, from query codes on the device to sorted ids and scores, by device events. The peer "
        "is a float16 product with `topk` in torch, measured at the largest size that fits and scaled.\n",
        table(
            [
                "keywords",
                "queries",
                "kernel",
                "ms (lowest – highest)",
                "queries/s",
                "of read bandwidth",
                "torch float16",
            ],
            [
                [
                    f"{c['keywords']:,}",
                    f"{c['batch']:,}",
                    c["backend"].split("/")[1],
                    f"{c['ms']:.2f} ({c['ms_min']:.2f} – {c['ms_max']:.2f})",
                    f"{c['queries_per_s']:,.0f}",
                    f"{100 * c['bandwidth_fraction']:.0f} %" if c.get("bandwidth_fraction") else "",
                    f"{c['ratios']['torch_float16_topk']:.1f}×" if c["ratios"] else "",
                ]
                for c in scan["cells"]
            ],
        ),
        "Random searches (shapes, planes, masks, ties, partitions) equal to the reference, by kernel: "
        + ", ".join(f"{name} {e['equal']} of {e['of']}" for name, e in scan["equality"].items())
        + ".\n",
        "What other settings cost, 1.2 billion keywords:\n",
        table(
            ["case", "queries", "top", "query planes", "ms", "queries/s"],
            [
                [
                    c["case"],
                    str(c["batch"]),
                    f"{c['k']:,}",
                    str(c["query_planes"]),
                    f"{c['ms']:.2f}",
                    f"{c['queries_per_s']:,.0f}",
                ]
                for c in scan["cases"]
            ],
        ),
        f"The third query plane costs {100 * (third[3] / third[2] - 1):+.1f} % (the paper: +4.18 %). The published "
        "selection beside the exact one, one query, 256 threads a block, 256 keywords a thread. In paper mode queues "
        "start at a floor; to the letter, every queue is written and all are sorted. Results are the same."
        f"{turns}\n",
        table(
            [
                "keywords",
                "places of a queue",
                "exact ms",
                "paper mode ms (lowest – highest)",
                "to the letter ms",
                "measured recall@1000",
                "its certificate",
                "sampling error",
            ],
            [
                [
                    f"{p['keywords']:,}",
                    str(p["queue"]),
                    f"{p.get('exact_ms', exact[p['keywords']]):.2f}",
                    f"{p['ms']:.2f} ({p['ms_min']:.2f} – {p['ms_max']:.2f})",
                    f"{p['as_printed_ms']:.2f}" if "as_printed_ms" in p else "",
                    f"{p['measured_recall']:.6f}",
                    f"{p['expected_recall']:.6f}",
                    f"{p['sampling_error']:.6f}",
                ]
                for p in scan["paper"]
            ],
        ),
        f"```text\n{scan['command']}\n```\n",
    ]


def serve_tables(result: Json) -> list[str]:
    """The service under load, beside in-process databases."""

    def spread(setting: str, name: str, digits: int = 0) -> str:
        of = result[setting].get(name)
        if of is None:
            return ""
        low, middle, high = (f"{of[key]:,.{digits}f}" for key in ("lowest", "median", "highest"))
        return f"{middle} ({low} – {high})"

    kept, limit = result["integrity"], result["generator"]
    what = {
        "qdrant_local": "qdrant-client, local mode, in memory (not Qdrant's server)",
        "lancedb": "LanceDB, on disk, exhaustive",
        "rbegir": "rbegir.Index, one query at a time, every write durable",
    }
    return [
        "## The service under load\n",
        f"{host(result)}, load average {result['host']['load_average']}; `rbegir serve` in a process of its own over "
        f"loopback, {result['keywords']:,} keywords, top {result['k']}, {result['clients']} clients in closed loops, "
        f"{100 * result['write_share']:.0f} % of the requests durable writes. Servers with and without micro-batching took "
        f"turns, {len(result['cells']) // 2} rounds each, {result['batched']['seconds']:.0f} s of load in all for either. "
        "Generator and service share the cores; alone, against a server that replays an answer of "
        f"{limit['answer_bytes']:,} bytes, the generator reaches {limit['searches_per_s']:,.0f} searches/s.\n",
        table(
            [
                "",
                "searches/s",
                "p50 ms",
                "p99 ms",
                "write p50 ms",
                "write p99 ms",
                "queries a scan",
                "CPU ms a search",
            ],
            [
                [
                    name,
                    spread(key, "searches_per_s"),
                    spread(key, "p50_ms", 1),
                    spread(key, "p99_ms", 1),
                    spread(key, "write_p50_ms", 1),
                    spread(key, "write_p99_ms", 1),
                    spread(key, "queries_a_scan", 1),
                    spread(key, "cpu_ms_a_search", 2),
                ]
                for key, name in (("batched", "micro-batching"), ("unbatched", "`--max-batch 1`"))
            ],
        ),
        f"Micro-batching: {result['ratio']['median']:.1f}× the searches ({result['ratio']['lowest']:.1f} – "
        f"{result['ratio']['highest']:.1f} over neighbouring rounds). {result['errors']} errors; "
        f"{kept['acknowledged_writes']:,} acknowledged writes, looked at {kept['reads']:,} times during the load, after each "
        f"round and on disk after each stop: {kept['lost']} lost, {kept['phantom']} phantom.\n",
        "Vector databases that run inside the measuring process, without HTTP, same vectors and mix, in the same run:\n",
        table(
            [
                "in process",
                "keywords",
                "threads",
                "searches/s",
                "p50 ms",
                "p99 ms",
                "the service over HTTP, batched",
            ],
            [
                [
                    what[name],
                    f"{peer['keywords']:,}",
                    str(peer["threads"]),
                    f"{peer['searches_per_s']:,.1f}",
                    f"{peer['p50_ms']:,.1f}",
                    f"{peer['p99_ms']:,.1f}",
                    f"{peer['ratio']:.1f}×",
                ]
                for name, peer in result["peers"].items()
                if "failed" not in peer
            ],
        ),
    ]


def page() -> str:
    peers, sizes = load("scan-cpu-peers"), load("scan-cpu")
    encode, fast, train = load("encode-cpu"), load("encode-h200"), load("train-h200")
    accuracy = load("reproduce-full")
    parts = [
        "# Benchmarks\n",
        "This page is written by `tools/results.py` from the files under `benchmarks/results`, which hold the "
        "machine, versions and commit of each run. Times are medians; the machines were shared with other work, so "
        "ratios within a run are what to trust. `make bench` runs the CPU part again.\n",
        "## Search on the CPU, beside its peers\n",
        f"{host(peers)}; one thread; random `rbe_star` codes (64 dimensions, 2 planes, 16 bytes), queries of 3 "
        "planes. Peers hold 16 bytes a vector too and return approximate scores; they were timed in turns with "
        "rbegir, and a ratio is the median over rounds. “Of the read” compares a single query with reading the codes "
        "once, plainly, from beginning to end.\n",
        table(
            [
                "keywords",
                "queries",
                "top",
                "ms (lowest – highest)",
                "pairs/s",
                "of the read",
                *PEERS.values(),
            ],
            [
                [
                    f"{c['keywords']:,}",
                    str(c["batch"]),
                    str(c["k"]),
                    f"{c['ms']:.2f} ({c['ms_min']:.2f} – {c['ms_max']:.2f})",
                    big(c["keywords"] * c["batch"] / c["ms"] * 1e3),
                    f"{100 * c['bandwidth_fraction']:.0f} %" if c["bandwidth_fraction"] else "",
                    *(f"{c['ratios'][key]:.2f}×" for key in PEERS),
                ]
                for c in peers["cells"]
            ],
        ),
        f"A new process answers its first query {peers['start']['first_answer_s']:.2f} s after it was started (Python, "
        f"imports, opening an index of {peers['start']['keywords']:,} keywords on disk, checking its codes, searching); "
        f"Python alone takes {peers['start']['python_alone_s']:.2f} s.\n",
        "## Sizes, batches, threads\n",
        table(
            ["keywords", "queries", "threads", "ms (lowest – highest)", "ms a query", "pairs/s"],
            [
                [
                    f"{c['keywords']:,}",
                    str(c["batch"]),
                    str(c["threads"]),
                    f"{c['ms']:.2f} ({c['ms_min']:.2f} – {c['ms_max']:.2f})",
                    f"{c['ms'] / c['batch']:.3f}",
                    big(c["keywords"] * c["batch"] / c["ms"] * 1e3),
                ]
                for c in sizes["cells"]
            ],
        ),
        *gpu_tables(load("scan-gpu")),
        *serve_tables(load("serve")),
        "## Encoding\n",
        table(
            ["machine", "what", "threads", "texts/s (lowest – highest)"],
            [
                [
                    host(result),
                    f"{c['cell']} on {c['device']}",
                    str(c.get("threads", "")),
                    f"{c['texts_per_s']:,.0f} ({c['spread'][0]:,.0f} – {c['spread'][1]:,.0f})",
                ]
                for result in (encode, fast)
                for c in result["cells"]
            ],
        ),
        "## Training\n",
        f"{host(train)}: {train['pairs_per_s']:,.0f} pairs/s ({train['spread'][0]:,.0f} – {train['spread'][1]:,.0f}), "
        f"`{train['preset']}` at the paper's dimensions, batches of {train['batch_size']:,}, every other keyword of the "
        f"batch a negative{unguided(train)}, read, tokenised and shuffled anew in every epoch. Milliseconds of a step, each part waited "
        "for (in the stream the host works ahead of the device):\n",
        table(
            ["part", "ms", "floor by memory traffic"],
            [
                [part, f"{ms:.2f}", f"{train['floor_ms'][part]:.2f}" if part in train["floor_ms"] else ""]
                for part, ms in train["parts_ms"].items()
            ],
        ),
        "## Accuracy\n",
        f"Aliases of Wikipedia titles, made by editors, not clicks: {accuracy['dataset']['train_pairs']:,} training pairs; "
        f"{accuracy['dataset']['test_pairs']:,} pairs of titles that training never saw (split by title with a fixed hash). "
        f"AUC against 10 random negatives a pair; recall among {accuracy['dataset']['corpus']:,} titles, every one scored. "
        "Mean ± standard deviation over seeds. Every model, quantisers beside them, and the paper's tables: "
        "[reproduction](reproduction.md).\n",
        table(
            ["model", "bytes a keyword", "ROC AUC", "recall@1", "recall@10", "recall@100", "seeds"],
            accuracy_rows(accuracy),
        ),
        "```text\nrbegir reproduce --data DIR --device cuda\n```\n",
    ]
    return "\n".join(parts)


def current_readme() -> str:
    before, rest = README.read_text().split(MARKS[0])
    return before + MARKS[0] + readme() + MARKS[1] + rest.split(MARKS[1])[1]


def main() -> None:
    README.write_text(current_readme())
    PAGE.write_text(re.sub(r"\n{3,}", "\n\n", page()))


if __name__ == "__main__":
    main()
