"""Both towers and their heads: the whole trainable model.

    query text   ─ conv ─ hidden ─ RBE (u rounds) or tanh ─ b_q ┐
                                                                 ├ cos(b_q, b_k)
    keyword text ─ conv ─ hidden ─ RBE (v rounds) or tanh ─ b_k ┘

With `share_towers` conv and hidden layers exist once, under the name `shared`, and only the heads differ. The
names in `state_dict()` are those of the checkpoint.
"""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from rbegir.encode.clsm.binarize import Draw
from rbegir.encode.clsm.clsm import Conv, TowerBatch
from rbegir.encode.clsm.presets import FLOAT, ModelConfig, Side
from rbegir.encode.clsm.rbe import RBE, Embedding, start_as_quantiser
from rbegir.read.tokenizer import VOCABULARY


class _Part(nn.Module):
    """A named group of layers: the tower (conv, hidden), a head (rbe or out), or both."""

    def __init__(self, config: ModelConfig, *, tower: bool, planes: int | None) -> None:
        super().__init__()
        if tower:
            self.conv = Conv(VOCABULARY + config.hash_buckets, config.conv, bias=config.bias)
            widths = (config.conv, *config.hidden)
            self.hidden = nn.ModuleList(
                nn.Linear(before, after, bias=config.bias) for before, after in pairwise(widths)
            )
        if planes == FLOAT:
            self.out = nn.Linear(config.width, config.n, bias=config.bias)
        elif planes is not None:
            self.rbe = RBE(config, planes)

    def features(self, batch: TowerBatch) -> Tensor:
        f: Tensor = self.conv(batch)
        for layer in self.hidden:
            f = torch.tanh(layer(f))
        return f  # [texts, m]

    def head(self, f: Tensor) -> Embedding:
        if hasattr(self, "rbe"):
            embedding: Embedding = self.rbe(f)
            return embedding
        return Embedding(torch.tanh(self.out(f)), (), None, f)


class FeatureDropout(nn.Module):
    """Leaves out a share of the features f in training and scales the rest up to the same mean.

    A code is made from f alone, so it learns not to depend on single features. The trainer sets `draw` in
    each step, which makes it a function of the step; outside of training f passes unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.0
        self.draw: Draw | None = None

    def forward(self, f: Tensor) -> Tensor:
        if not self.training or not self.share:
            return f
        assert self.draw is not None
        kept = self.draw(f, partial(_bernoulli, share=1 - self.share))  # [texts, m]
        return f * kept.div_(1 - self.share)


def _bernoulli(into: Tensor, *, share: float, generator: torch.Generator) -> Tensor:
    """1 with probability `share`, else 0, by 16 random bits each: a third of the time of `bernoulli_`."""
    bits = torch.empty(-(-into.numel() // 4), dtype=torch.int64, device=into.device)
    bits.random_(-(2**63), None, generator=generator)
    return into.copy_(bits.view(torch.int16)[: into.numel()].view_as(into) < round(share * 2**16) - 2**15)


class TwoTower(nn.Module):
    """The model of a configuration, with fresh parameters drawn from torch's global generator."""

    def __init__(self, config: ModelConfig, *, equal_start: bool = True) -> None:
        super().__init__()
        self.config = config
        own = not config.share_towers
        self.query = _Part(config, tower=own, planes=config.query_planes)
        self.keyword = _Part(config, tower=own, planes=config.keyword_planes)
        if config.share_towers:
            self.shared = _Part(config, tower=True, planes=None)
        self.dropout = nn.ModuleDict({"query": FeatureDropout(), "keyword": FeatureDropout()})
        if equal_start:
            self._start_equal()

    @torch.no_grad()
    def _start_equal(self) -> None:
        """Start both sides with the same parameters, so that even an untrained model ranks by spelling."""
        query = self.query.state_dict()
        for name, value in self.keyword.state_dict().items():
            if name in query and query[name].shape == value.shape:
                value.copy_(query[name])

    @torch.no_grad()
    def start_from_spelling(self, sample: TowerBatch) -> None:
        """Start the RBE layers as a quantiser of the untrained features of some texts (`rbe.py`).

        Features are random projections of the grams of a text, so codes rank by spelling before the first
        step: on the shipped sample recall@10 is .30 instead of .09. A tower without biases could not
        subtract the mean of its features and starts as drawn. Rows of W and R keep the length that they were
        drawn with, which changes no bit: longer ones would drown the gradient of the guide.
        """
        for part in (self.query, self.keyword):
            if self.config.bias and hasattr(part, "rbe"):
                tower = self.shared if self.config.share_towers else part
                layers = [part.rbe.W, *part.rbe.R]
                drawn = [layer.weight.norm() for layer in layers]
                start_as_quantiser(part.rbe, tower.features(sample))
                for layer, norm in zip(layers, drawn, strict=True):
                    scale = norm / layer.weight.norm()
                    layer.weight.mul_(scale)
                    layer.bias.mul_(scale)

    def embed(self, side: Side, batch: TowerBatch) -> Embedding:
        """Vectors, planes and (stochastic estimator only) log probabilities of the texts of a batch."""
        part = self.query if side == "query" else self.keyword
        tower = self.shared if self.config.share_towers else part
        return part.head(self.dropout[side](tower.features(batch)))


def unit(vector: Tensor) -> Tensor:
    """Rows scaled to length 1 in float32 (without residual weights a code can be all zero: it stays 0)."""
    return nn.functional.normalize(vector.float(), dim=-1)
