"""RBE layers as the last module of a `SentenceTransformer`: its trainer, its losses, its files.

    model = SentenceTransformer(modules=[transformer, pooling, RBEHead(384, n=128)])

    features["sentence_embedding"] [batch, 384] ─ length 1 ─ RBE ─ b^t [batch, n] in its place

The cosine of two outputs is the score of their codes (`rbegir.codes.score`), so every loss that compares
embeddings by cosine trains what will be searched.

*Two sides, one head.* A query is encoded with `query_planes`, a keyword with the first `keyword_planes` of
them; the `task` of `encode_query` and `encode_document` says which. Losses do not say it, so in training
every text shows all planes or only the stored ones by the toss of a coin. Rejected: a head for each side
behind a Router, because two heads drift apart on the few pairs of a fine-tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_PLANES
from rbegir.encode.binarizer.binarizer import default_n
from rbegir.encode.clsm.rbe import prefixes, rbe_layers, start_as_quantiser
from rbegir.encode.encoder import NEEDED
from rbegir.errors import InputError, needing, whole_number

if TYPE_CHECKING:
    from rbegir.encode.clsm.presets import Estimator

with needing(*NEEDED):
    from sentence_transformers.base.modules import Module

KEYWORD_TASKS = ("document", "keyword")


class RBEHead(Module):
    """The layers above for vectors of `in_features` numbers.

    n                 dimension of the codes, a multiple of 64; `in_features` rounded up if not given
    query_planes      bits per dimension of a query
    keyword_planes    bits per dimension of a stored keyword: n · keyword_planes / 8 bytes each
    """

    __module__ = "rbegir.heads.sentence"  # saved models name the class by this path, see `rbegir.moved`
    config_keys: list[str] = ["in_features", "n", "query_planes", "keyword_planes", "estimator"]  # noqa: RUF012
    forward_kwargs: set[str] = {"task"}  # noqa: RUF012

    def __init__(
        self,
        in_features: int,
        n: int | None = None,
        query_planes: int = 3,
        keyword_planes: int = 2,
        estimator: Estimator = "straight_through_variant",
    ) -> None:
        self._build(in_features, n, query_planes, keyword_planes, estimator)
        # a cloud in all directions, until `start` has seen real vectors
        cloud = torch.randn(4 * in_features, in_features, generator=torch.Generator().manual_seed(0))
        start_as_quantiser(self.rbe, functional.normalize(cloud))

    def _build(
        self, in_features: int, n: int | None, query_planes: int, keyword_planes: int, estimator: Estimator
    ) -> None:
        """Make the layers; their weights are not set yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        most = min(MAX_KEYWORD_PLANES, query_planes) if type(query_planes) is int else MAX_KEYWORD_PLANES
        keyword_planes = whole_number("keyword_planes", keyword_planes, 1, most)
        query_planes = whole_number("query_planes", query_planes, 1, MAX_PLANES)
        self.in_features = in_features
        self.n = default_n(in_features) if n is None else n
        self.query_planes, self.keyword_planes = query_planes, keyword_planes
        self.estimator = estimator
        self.rbe = rbe_layers(in_features, self.n, query_planes, estimator=estimator)

    def start(self, vectors: Tensor) -> Self:
        """Begin as a good quantiser of vectors like these [count, in_features], before training."""
        if vectors.ndim != 2 or vectors.shape[1] != self.in_features or len(vectors) < 2:
            raise InputError(
                f"vectors must be [2 or more, {self.in_features}], got {list(vectors.shape)}",
                hint="pass the encoder's vectors of some texts",
            )
        if not torch.isfinite(vectors).all():
            raise InputError("vectors hold NaN or infinity")
        start_as_quantiser(self.rbe, functional.normalize(vectors.float()))
        return self

    def forward(
        self, features: dict[str, Tensor | Any], task: str | None = None, **_: Any
    ) -> dict[str, Tensor | Any]:
        task = task or features.get("task")  # type: ignore[assignment]
        f = functional.normalize(features["sentence_embedding"])  # [batch, in_features]
        vectors = prefixes(self.rbe(f.to(self.rbe.W.weight.dtype)))
        full, stored = vectors[-1], vectors[self.keyword_planes - 1]  # [batch, n]
        if task in KEYWORD_TASKS:
            out = stored
        elif task is None and self.training:
            heads = torch.rand(len(full), 1, device=full.device) < 0.5
            out = torch.where(heads, full, stored)
        else:
            out = full
        features["sentence_embedding"] = out
        return features

    def get_embedding_dimension(self) -> int:
        return self.n

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=True)  # never pickle

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        known = ("token", "cache_folder", "revision", "local_files_only")
        hub = {key: kwargs[key] for key in known if key in kwargs}
        head = cls.__new__(cls)
        head._build(**cls.load_config(model_name_or_path, subfolder=subfolder, **hub))
        loaded: Self = cls.load_torch_weights(model_name_or_path, subfolder=subfolder, model=head, **hub)
        return loaded
