"""Writes every generated page and picture of the docs from the committed results; tests keep them current.

    python tools/pages.py

The sentences are in tools/templates (the report of `rbegir reproduce` has its own in the package), figures
come from benchmarks/results, and docs/cli.md from the command line itself. A template with the name of a page
that has marks (<!-- results: … -->) fills the part between them; the others are whole pages.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_docs
import plan_figures
from bars import Bar, svg
from plan_figures import RESULTS, ROOT, load

from rbegir.errors import InputError
from rbegir.lab.bench.accuracy import key, spread
from rbegir.lab.bench.host import cpu_name
from rbegir.lab.figures import Json, Stat, big, environment
from rbegir.lab.plan import Wish, plan
from rbegir.lab.reproduce import paper
from rbegir.lab.reproduce.job import read_results
from rbegir.lab.reproduce.report import page as reproduction_page

DOCS = ROOT / "docs"
MARKS = ("<!-- results: written by tools/pages.py -->\n", "<!-- end of results -->\n")
TEMPLATES = environment(Path(__file__).with_name("templates"))
DATABASES = {
    "qdrant_edge": "Qdrant's embedded core, on disk, exact",
    "lancedb": "LanceDB, on disk, exhaustive",
    "lancedb_ivf": "LanceDB, on disk, IVF_PQ index (approximate)",
    "sqlite_vec": "sqlite-vec, on disk, exhaustive",
    "sqlite_vec_bits": "sqlite-vec, on disk, bits re-scored (approximate)",
    "milvus_lite": "Milvus Lite, on disk, FLAT index",
    "rbegir": "rbegir.Index, one query at a time, every write durable",
}
SCAN_PEERS = {
    "faiss_pq": "FAISS PQ 4-bit fast-scan",
    "faiss_bin": "FAISS IndexBinaryFlat",
    "faiss_rabitq": "FAISS RaBitQ fast-scan",
    "turbovec": "turbovec 2-bit",
    "scann": "ScaNN 4-bit",
    "rabitqlib": "RaBitQ library 2-bit",
    "usearch": "usearch, exact bits",
    "numkong": "NumKong, distances alone",
}
MODELS = {"rbe_star": 16, "m_5": 16, "m_3": 16, "64x1, 8-plane query": 8, "rbe_3": 24, "m_1": 256}
VECTOR_SETS = {  # title, and bytes at 2 bits per dimension
    "glove": ("GloVe, 50-d", 16),
    "clsm": ("CLSM, 64-d", 16),
    "minilm": ("MiniLM, 384-d", 96),
    "lsa": ("LSA, 256-d", 64),
    "patches": ("patches, 128-d", 32),
    "minilm-part": ("MiniLM part, 384-d", 96),
}
METHODS = {
    "binarizer": "Binarizer",
    "binarizer_reranked": "Binarizer, `rerank=True`",
    "binarizer_patient": "Binarizer, four times the moves",
    "binarizer_quick": "Binarizer, an eighth of the moves",
    "binarizer_3_planes": "Binarizer, 3-bit query",
    "binarizer_start": "Binarizer, `rounds=0`",
    "rq": "FAISS residual quantiser, encoding beam 5",
    "rq_16": "FAISS residual quantiser, encoding beam 16",
    "rq_32": "FAISS residual quantiser, encoding beam 32",
    "prq": "FAISS residual quantisers of parts",
    "lsq": "FAISS LSQ",
    "opq": "FAISS OPQ",
    "pq": "FAISS PQ",
    "rabitq": "FAISS RaBitQ",
    "turbovec": "turbovec",
    "scalar": "rotation + scalar",
    "sign_rescore": "sign + float16 rescore",
}
WISHES = (
    Wish(10**8, 100.0, 100.0),
    Wish(10**9, 50.0, 1000.0),
    Wish(10**10, 50.0, 1000.0),
    Wish(10**11, 200.0, 100.0),
    Wish(10**11, 50.0, 10_000.0),
    Wish(10**11, 5.0, 10_000.0),
)


SINCE_USEARCH_INDEX = "2026-11-19T14:00"  # from then on, usearch is searched by an index


def render(template: str, **figures: Any) -> str:
    return TEMPLATES.get_template(f"{template}.md.j2").render(**figures)


def between_marks(path: Path, text: str) -> str:
    """A page with its generated part replaced."""
    before, rest = path.read_text().split(MARKS[0])
    return before + MARKS[0] + text + MARKS[1] + rest.split(MARKS[1])[1]


def benchmarks() -> Json:
    """The figures of docs/benchmarks.md and of the table in README.md."""
    accuracy, gpu, scans = load("reproduce-full"), load("scan-gpu"), load("scan-cpu-peers")
    for c in scans["cells"]:
        c["avx2_lead"] = min(c["isa_ratios"]["avx2"].values())
    planes = {
        c["query_planes"]: c["ms"] for c in gpu["cases"] if "query planes" in c["case"] and c["batch"] == 1
    }

    def host(result: Json) -> str:
        about = result["host"]
        device = about.get("device", "cpu")
        return f"{cpu_name(about) if device == 'cpu' else device}, {about['cpus']} CPU cores"

    def over_seeds(row: str, figure: str) -> Json:
        values = [run["figures"][figure]["value"] for run in accuracy["runs"] if run["row"] == row]
        return Stat.of(values)._asdict()

    def quantised(name: str, query: str) -> float:
        """Mean recall@10 of a quantiser of m_1's vectors, for queries of some precision."""
        return statistics.fmean(
            one["recall@10"]["value"]
            for run in accuracy["runs"]
            if run["row"] == "m_1"
            for one in run["studies"]["quantisers"]
            if (one["name"], one["query"]) == (name, query)
        )

    def cell(result: Json, **wanted: int) -> Json:
        (found,) = (c for c in result["cells"] if all(c[key] == value for key, value in wanted.items()))
        return dict(found)

    hits = load("hits-cpu")
    hits["rows"] = load("hits")["rows"] + hits["rows"]  # all titles, on a GPU

    def method(name: str) -> dict[str, Json]:
        return {row["task"]: row for row in hits["rows"] if row["method"] == name}

    return {
        "hits": hits,
        "reranked": method("reranked"),
        "coded": method("codes"),
        "bm25": method("BM25"),
        "grams": method("tri-letter cosine"),
        "untrained": {run["row"]: run for run in accuracy["runs"] if run["row"] in ("bm25", "triletter")},
        "peers": scans,
        "since_usearch_index": SINCE_USEARCH_INDEX,
        "sizes": load("scan-cpu"),
        "gpu": gpu,
        "maxsim": load("maxsim-gpu"),
        "serve": load("serve"),
        "filters": load("filters"),
        "join": load("join") if (RESULTS / "join.json").exists() else None,
        "join_gpu": load("join-gpu") if (RESULTS / "join-gpu.json").exists() else None,
        "growth": load("growth"),
        "everyday": load("everyday"),
        "encoder_words": load("everyday-encoder"),
        "rerank": load("rerank"),
        "encode": load("encode-cpu"),
        "encode_gpu": load("encode-h200"),
        "train": load("train-h200"),
        "accuracy": accuracy,
        "vectors": vectors(),
        "third_plane": 100 * (planes[3] / planes[2] - 1),
        "latency_of_paper": paper.LATENCY_MS["rbe_star"],
        "exact_ms": {c["keywords"]: c["ms"] for c in gpu["cells"] if c["batch"] == 1},
        "peer_names": lambda result: {
            key: name for key, name in SCAN_PEERS.items() if key in result["cells"][0]["ratios"]
        },
        "databases": DATABASES,
        "models": MODELS,
        "host": host,
        "over_seeds": over_seeds,
        "quantised": quantised,
        "cell": cell,
        "pairs": lambda c: big(c["keywords"] * c["batch"] / c["ms"] * 1e3),
        "spread_ms": lambda c: f"{c['ms']:.2f} ({c['ms_min']:.2f} – {c['ms_max']:.2f})",
    }


def vectors() -> Json:
    """The figures of the tables in docs/vectors.md."""
    results = {name: load(f"accuracy-vectors-{name}") for name in VECTOR_SETS}

    def at(name: str, method: str, size: int | None = None) -> Json | None:
        """A line of a summary by its budget; without one, that of 2 bits per dimension."""
        lines = (r for r in results[name]["summary"] if r["budget_bytes"] == (size or VECTOR_SETS[name][1]))
        return next((row for row in lines if row["method"] == method), None)

    def budgets(name: str) -> list[int]:
        return sorted({row["budget_bytes"] for row in results[name]["summary"]})

    def half_width(spread: Json) -> str:
        half = "" if spread["half_width"] is None else f" ± {spread['half_width']:.3f}"
        return f"{spread['mean']:.3f}{half}"

    def lead(name: str, size: int, ours: str, peer: Json) -> Json | None:
        """recall@10 of ours minus a peer's: over the seeds that both have, the mean and its interval."""
        found: dict[str, dict[int, float]] = {ours: {}, peer["method"]: {}}
        for c in results[name]["cells"]:
            if c["budget_bytes"] == size and c["method"] in found:
                found[c["method"]][c["seed"]] = c["recall@10"]
        mine, theirs = found.values()
        both = sorted(mine.keys() & theirs.keys())
        return spread([mine[seed] - theirs[seed] for seed in both]) if both else None

    def best_peer(name: str, size: int | None = None, most: float = math.inf) -> Json | None:
        """The peer that the Binarizer leads by least, among those that store at most `most` bytes.

        One that keeps a float16 copy is another class.
        """
        rows = [row for method in METHODS if (row := at(name, method, size)) and method != "sign_rescore"]
        peers = [row for row in rows if "ahead" in row and row["bytes"] <= most]
        return min(peers, key=lambda row: row["ahead"]["mean"], default=None)

    def leads() -> Iterator[Json]:
        """For each set and size, the leads over the best peer of that size, and over a better larger one."""
        for name, (title, usual) in VECTOR_SETS.items():
            dims = results[name]["vectors"]["dims"]
            for size in budgets(name):
                rivals = ("rq", "opq") if size <= dims else ("rq",)  # OPQ has at most a byte per dimension
                unknown = [METHODS[m].split(",")[0] for m in rivals if at(name, m, size) is None]
                fits, best = best_peer(name, size, size), best_peer(name, size)
                for peer in (fits, best) if best != fits else (fits,):
                    if peer is None:
                        continue
                    reranked = lead(name, size, "binarizer_reranked", peer)
                    yield {
                        "title": title,
                        "bytes": size,
                        "peer": peer,
                        "unknown": unknown,
                        "usual": size == usual,
                        "plain": peer["ahead"],
                        "reranked": reranked,
                    }

    lost: dict[str, list[int]] = {}  # sizes at which a peer finds more
    below = [one for one in leads() if one["plain"]["mean"] < 0]
    for one in below:
        sizes = lost.setdefault(one["title"], [])
        if one["bytes"] not in sizes:
            sizes.append(one["bytes"])

    def faster(*peers: str) -> Json:
        """How many runs of peers encoded faster than the Binarizer did with the same vectors, bytes and seed."""
        ratios = []
        for result in results.values():
            speed = {key(c): c["encode_per_s"] for c in result["cells"]}
            ratios += [
                own / speed["binarizer", size, seed]
                for (method, size, seed), own in speed.items()
                if method in peers and ("binarizer", size, seed) in speed
            ]
        return {
            "runs": len(ratios),
            "faster": sum(ratio > 1 for ratio in ratios),
            "tenfold": sum(ratio >= 10 for ratio in ratios),
        }

    def compared(name: str) -> list[str]:
        """Methods in the table of all sizes: the default Binarizer and the peers."""
        ours = ("binarizer", "binarizer_reranked")
        shown = [m for m in METHODS if m in ours or not m.startswith("binarizer")]
        return [m for m in shown if any(at(name, m, size) for size in budgets(name))]

    return {
        "results": results,
        "task": load("accuracy-title-task"),
        "shown": {name: title for name, (title, _) in VECTOR_SETS.items()},
        "methods": METHODS,
        "at": at,
        "any_of": lambda method: any(at(name, method) for name in VECTOR_SETS),
        "budgets": budgets,
        "half_width": half_width,
        "best_peer": best_peer,
        "leads": list(leads()),
        "lost": lost,
        "brief": lambda title: title.split(",")[0],
        "most_lost": max((-one["plain"]["mean"] for one in below), default=0.0),
        "faster": faster("pq", "rabitq", "turbovec"),
        "short": lambda method: METHODS[method.removesuffix("_16").removesuffix("_32")].split(",")[0],
        "compared": compared,
        "mean": lambda rows, key: statistics.fmean(row[key] for row in rows),
    }


def upgrade() -> Json:
    result = load("upgrade")

    def over_runs(side: str, case: str, name: str) -> Json:
        return Stat.of([run[side][case][name] for run in result["runs"]])._asdict()

    return {**result, "over_runs": over_runs}


def plans() -> Json:
    """What the planner says to a few requests, and the tails behind it."""
    known = plan_figures.figures()

    def options() -> Iterator[tuple[Wish, str, Json | None]]:
        for wish in WISHES:
            for name in (machine["name"] for machine in known["machines"]):
                try:
                    yield wish, name, plan(wish, known, name)["options"][0]
                except InputError:
                    yield wish, name, None

    tails = plan(WISHES[4], known)["tails"]
    return {
        "options": list(options()),
        **{
            name: {tail["shards"]: tail["p99_ms"] for tail in tails if tail["hedged"] == hedged}
            for name, hedged in (("plain", False), ("hedged", True))
        },
    }


def reliability() -> Json:
    found = {path.stem.removeprefix("torture-"): load(path.stem) for path in RESULTS.glob("torture-*.json")}
    return {
        "results": found,
        "answered": lambda counts: sum(n for name, n in counts.items() if name.endswith(" answered")),
        "by_gpu": lambda counts: sum(n for way, n in counts.items() if "cuda" in way),
    }


def generalisations() -> Json:
    def dict_by_model(rows: list[Json], figure: str) -> dict[str, float]:
        return {row["model"]: row[figure]["mean"] for row in rows}

    return {**load("generalisations"), "dict_by_model": dict_by_model}


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page with its text as it should be."""
    figures = benchmarks()
    yield ROOT / "README.md", between_marks(ROOT / "README.md", render("readme", **figures))
    yield DOCS / "benchmarks.md", render("benchmarks", **figures)
    yield DOCS / "generalisations.md", render("generalisations", **generalisations())
    yield DOCS / "reliability.md", render("reliability", **reliability())
    cluster = {"cluster": load("cluster"), "cpu_name": cpu_name, "survived": load("cluster-faults")}
    parts = (("cluster", cluster), ("plan", plans()), ("upgrade", upgrade()), ("vectors", vectors()))
    for name, found in parts:
        yield DOCS / f"{name}.md", between_marks(DOCS / f"{name}.md", render(name, **found))
    whole = read_results(RESULTS / "reproduce-full.json")
    yield DOCS / "reproduction.md", reproduction_page(whole, gpu=load("scan-gpu"))
    small = reproduction_page(read_results(RESULTS / "reproduce-small.json"), pictures=False)
    yield DOCS / "reproduction-small.md", small
    yield DOCS / "cli.md", cli_docs.page()
    yield plan_figures.PATH, plan_figures.text()


def pictures() -> Iterator[tuple[Path, str]]:
    lines = "lines: 95 % interval of the mean over seeds"
    found = load("generalisations")
    networks = (
        (
            "hashing",
            "precision@10",
            "Share of the nearest ten documents from the same subpackage",
            "docstrings of NumPy, SciPy and scikit-learn",
        ),
        (
            "cbow",
            "overlap@10",
            "Share of the nearest ten words that a float model has too",
            "words of Wikipedia titles; float: another seed, the most that can be expected",
        ),
    )
    for name, figure, title, note in networks:
        rows = [
            Bar(
                f"{row['model']}, {row['bytes']} bytes" if row["bytes"] else row["model"],
                row[figure]["mean"],
                Stat(row[figure]["mean"], row[figure]["std"], row["seeds"]).half_width(),
                row["model"].startswith("RBE") and "untrained" not in row["model"],
            )
            for row in found[name]["rows"]
        ]
        yield DOCS / "img" / f"{name}.svg", svg({title: rows}, f"{note}; {lines}")
    figures = vectors()
    blocks = {}
    for name, title in figures["shown"].items():
        rows = [
            Bar(
                f"{METHODS[method].replace('`', '')} ({row['bytes']:g} B)",
                row["recall@10"]["mean"],
                row["recall@10"]["half_width"],
                method.startswith("binarizer"),
            )
            for method in METHODS
            if (row := figures["at"](name, method))
        ]
        blocks[title] = sorted(rows, key=lambda bar: -bar.value)
    yield DOCS / "img" / "recall.svg", svg(blocks, f"recall@10 at 2 bits per dimension; {lines}")


if __name__ == "__main__":
    for path, text in [*pages(), *pictures()]:
        path.write_text(text)
