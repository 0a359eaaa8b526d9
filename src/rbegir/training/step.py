"""One training step: two towers forward, one loss, two towers backward, the update.

The two sides meet only in the loss. On a CPU each side therefore has a thread (a lane) with half of the
cores: two barriers per step instead of one per operation. The lanes share the pairs of the loss, too.

*The update.* Adam for everything small; for the gram tables `RowRMS`, which moves only the rows that a batch
touches. A table is [V, 3c], 50 million numbers per side, and a batch of 16,384 pairs touches 16 % of its
rows; dense Adam would move 1.4 GB per side and step.

    v[r, part] ← β v[r, part] + (1 − β) mean(g[r, part]²)         for each of the three parts of a row
    row r      ← row r − lr · g[r] / (√(v[r] / (1 − β^steps(r))) + ε)

steps(r) counts the steps in which row r was touched, so a rare gram starts with an unbiased v.

Rejected (dev/LOG.md): Adam for the touched rows, with and without momentum. Momentum did not help the tables,
and a mean over the row did as well as one v per number; each would be an array as large as the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rbegir._native import _core
from rbegir.base.devices import cpu_count, gpu_number, split_name
from rbegir.encode.clsm.binarize import Draw, slope_at
from rbegir.encode.clsm.clsm import Conv, TowerBatch, without_sparse_checks
from rbegir.encode.clsm.presets import Side
from rbegir.encode.clsm.twotower import FeatureDropout, TwoTower
from rbegir.training.batches import StepBatch
from rbegir.training.config import TrainConfig
from rbegir.training.distributed import Rank, gather, sum_gradients, sum_scalar
from rbegir.training.loss import Gamma, Guide, away, group_loss, score_function_term


class Output(NamedTuple):
    """The outputs of one side that enter the loss, or the leaves that stand for them there."""

    vector: Tensor  # [texts, n]
    log_prob: Tensor | None  # [texts] log P of the rows, for the stochastic estimator
    guide: Tensor | None  # [texts, dims] the float embedding beside the codes, see loss.py

    def leaves(self) -> Output:
        """Copies that gradients of the loss are collected in."""
        return Output(*(None if x is None else x.detach().requires_grad_() for x in self))  # type: ignore[arg-type]

    def backward(self, leaves: Output) -> None:
        """Send the gradients of the leaves on into the tower."""
        live = [
            (x, leaf.grad)
            for x, leaf in zip(self, leaves, strict=True)
            if x is not None and leaf is not None and x.requires_grad and leaf.grad is not None
        ]
        if live:
            torch.autograd.backward([x for x, _ in live], [grad for _, grad in live])


class Learner:
    """Model, γ, optimisers and the step on them. Everything that training changes is here."""

    def __init__(
        self,
        model: TwoTower,
        config: TrainConfig,
        device: torch.device,
        rank: Rank | None = None,
        *,
        lanes: bool = True,
    ) -> None:
        """`lanes`: give each side a thread of its own on a CPU."""
        without_sparse_checks()
        self.model = model.to(device).train()
        self.config, self.device, self.rank = config, device, rank or Rank()
        self.gamma = Gamma(config.gamma).to(device)
        self.guide = Guide(model.config, config.guide_dims).to(device) if config.guide else None
        distinct = self.rank.world > 1 or not model.config.share_towers
        tables = [part.weight for part in model.modules() if isinstance(part, Conv)]
        self.tables = [RowRMS(table, distinct=distinct) for table in tables if table.requires_grad]
        in_tables = {id(table.table) for table in self.tables}
        self.dense = [p for p in model.parameters() if p.requires_grad and id(p) not in in_tables]
        self.dense += [p for p in self.gamma.parameters() if p.requires_grad]
        self.dense += list(self.guide.parameters()) if self.guide else []
        self.adam = torch.optim.Adam(self.dense, lr=config.lr, fused=device.type == "cuda")
        self.baseline: float | None = None  # a running mean of the loss, for the stochastic estimator
        self.taught: tuple[Tensor, Tensor] | None = None  # [texts, dims] of either side: a teacher's vectors
        self.steps = 0
        self._heads = [
            (side, part.rbe)
            for side, part in (("query", model.query), ("keyword", model.keyword))
            if hasattr(part, "rbe")
        ]
        self._bfloat16 = config.precision == "bfloat16"
        threads = max(1, cpu_count() // 2)
        self._lanes = (  # a third thread waits for the two that share the loss
            ThreadPoolExecutor(3, "rbegir-side", initializer=torch.set_num_threads, initargs=(threads,))
            if lanes and device.type == "cpu"
            else None
        )

    @property
    def gamma_value(self) -> float:
        return float(self.gamma().detach())

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.shutdown()

    def step(
        self, batch: StepBatch, *, lr_scale: float, progress: float, mark: Callable[[str], None] | None = None
    ) -> Tensor:
        """Learn from one batch; returns the loss before the update. `mark` hears of each part as it ends."""
        mark = mark or (lambda part: None)
        self._prepare_randomness(batch, progress)
        query, keyword = self._run(
            lambda: self._embed("query", batch.query), lambda: self._embed("keyword", batch.keyword)
        )
        mark("forward")
        # The loss sees leaves, so that each side's backward pass is a graph of its own, for its own lane.
        query_leaves, keyword_leaves = query.leaves(), keyword.leaves()
        loss: Tensor = self._run(lambda: self._loss(batch, query_leaves, keyword_leaves))[0]
        mark("loss")
        self._run(lambda: query.backward(query_leaves), lambda: keyword.backward(keyword_leaves))
        mark("backward")
        sum_gradients(self.dense, (table.table for table in self.tables), self.rank)
        self._update(lr_scale)
        mark("update")
        self.steps += 1
        return loss

    def _loss(self, batch: StepBatch, query: Output, keyword: Output) -> Tensor:
        """The loss of the codes over all processes; its gradients go into the leaves and γ."""
        groups = (
            batch.target.long(),
            torch.stack([batch.known_rows, batch.known_columns]).long(),
            batch.negatives.long(),
            batch.weight,
            self._lanes,
        )

        def everyones(keywords: Tensor) -> Tensor:
            return gather(keywords, batch.owned, self.rank)  # [distinct keywords of all processes, n]

        loss, losses = group_loss(query.vector, everyones(keyword.vector), self.gamma(), *groups)
        total = sum_scalar(loss.detach().clone(), self.rank)
        if self.model.config.estimator == "stochastic":
            everything = float(total)
            baseline = everything if self.baseline is None else self.baseline
            self.baseline = 0.9 * baseline + 0.1 * everything
            loss = loss + score_function_term(
                losses - baseline, batch.weight, everything - baseline, query.log_prob, keyword.log_prob
            )
        if self.guide is not None and query.guide is not None and keyword.guide is not None:
            beside, _ = group_loss(query.guide, everyones(keyword.guide), self.guide.gamma(), *groups)
            loss = loss + self.config.guide * beside
            if self.taught is not None:
                apart = away(query.guide, self.taught[0][batch.query_texts.long()]) * batch.weight
                others = away(keyword.guide, self.taught[1][batch.keyword_texts.long()]) / sum(batch.owned)
                loss = loss + self.config.teacher * (apart.sum() + others.sum())
        loss.backward()  # type: ignore[no-untyped-call]
        return total

    def _prepare_randomness(self, batch: StepBatch, progress: float) -> None:
        """Make all randomness in the network a function of the seed, the step and the row of the batch."""
        for number, (side, head) in enumerate(self._heads):
            head.slope = slope_at(progress)
            if head.estimator == "stochastic":
                head.draw = self._draw(number, batch, side)
        if self.config.feature_dropout:
            for number, (side, layer) in enumerate(self.model.dropout.items(), start=len(self._heads)):
                assert isinstance(layer, FeatureDropout)
                layer.share, layer.draw = self.config.feature_dropout, self._draw(number, batch, side)

    def _draw(self, number: int, batch: StepBatch, side: str) -> Draw:
        """One of up to four draws of this step."""
        seed = (self.config.seed * 1_000_003 + self.steps) * 4 + number
        generator = torch.Generator(self.device).manual_seed(seed % 2**63)
        if self.rank.world == 1:
            return Draw(generator)
        if side == "query":
            return Draw(generator, batch.query_rows.long(), batch.pairs)
        return Draw(generator, batch.keyword_rows.long(), sum(batch.owned))

    def _embed(self, side: Side, batch: TowerBatch) -> Output:
        context: AbstractContextManager[object] = nullcontext()
        if self._bfloat16:
            context = torch.autocast(self.device.type, dtype=torch.bfloat16)
        with context:
            found = self.model.embed(side, batch)
            guide = None if self.guide is None else self.guide(side, found.features)
        return Output(found.vector, found.log_prob, guide)

    def _update(self, lr_scale: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = self.config.lr * lr_scale
        for table in self.tables:
            table.step(self.config.table_lr * lr_scale)
        self._run(self.adam.step)
        self.adam.zero_grad(set_to_none=True)

    def _run(self, *works: Callable[[], Any]) -> list[Any]:
        """Run things with a lane's number of threads each, concurrently where there are lanes."""
        if self._lanes is None:
            return [work() for work in works]
        return [running.result() for running in [self._lanes.submit(work) for work in works]]


class RowRMS:
    """The optimiser of one gram table."""

    def __init__(
        self, table: nn.Parameter, *, distinct: bool = True, beta: float = 0.99, eps: float = 1e-10
    ) -> None:
        """`distinct`: no row occurs twice in a gradient, as long as it comes from one tower."""
        self.table, self.distinct, self.beta, self.eps = table, distinct, beta, eps
        rows, device = table.shape[0], table.device
        self.second = torch.zeros((rows, 3), device=device)  # v
        self.steps = torch.zeros(rows, device=device)  # float32 counts are exact up to 2^24
        self.threads = cpu_count()

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Apply the row-sparse gradient of the table and clear it."""
        grad = self.table.grad
        assert grad is not None
        self.table.grad = None
        if grad.device.type == "cpu":
            table, second, steps = (x.numpy() for x in (self.table.detach(), self.second, self.steps))
            rows, values = grad._indices()[0].numpy(), grad._values().numpy()
            _core.update_rows(table, second, steps, rows, values, lr, self.beta, self.eps, self.threads)
            return
        if not self.distinct:
            grad = grad.coalesce()  # sorts: autograd forgets that a gradient is coalesced already
        self._update(grad._indices()[0], grad._values(), lr)

    def _update(self, rows: Tensor, values: Tensor, lr: float) -> None:
        """Apply the gradient [touched, 3c] of distinct rows in tensor operations."""
        parts = values.view(len(rows), 3, -1)  # [rows, 3, c]
        mean = torch.linalg.vector_norm(parts, dim=2).square_().div_(parts.shape[2])  # [rows, 3]
        second = self.second[rows].lerp_(mean, 1 - self.beta)
        steps = self.steps[rows].add_(1)
        self.second[rows] = second
        self.steps[rows] = steps
        unbiased = second / (1 - self.beta ** steps[:, None])
        scaled = parts / unbiased.sqrt_().add_(self.eps)[:, :, None]
        self.table.index_add_(0, rows, scaled.view_as(values), alpha=-lr)


def resolve_device(name: str) -> torch.device:
    """The device called auto, cpu, cuda or cuda:N; under torchrun cuda is the process's own GPU."""
    kind, _ = split_name(name, "auto")
    if kind == "auto":
        kind = name = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", gpu_number(name, int(os.environ.get("LOCAL_RANK", "0"))))
    torch.cuda.set_device(device)
    return device


@contextmanager
def matmul_precision(device: torch.device, settings: TrainConfig) -> Iterator[None]:
    """TF32 products on a GPU unless float32 is asked for. Codes are exact in TF32: few bits per number."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda" and settings.precision != "float32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def batch_threads(device: torch.device) -> int:
    """The number of threads that build batches: a GPU trains faster than one thread can build."""
    return 1 if device.type == "cpu" else max(1, min(6, cpu_count() - 2))
