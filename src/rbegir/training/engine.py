"""One training step: two towers forward, one loss, two towers backward, the update.

The two sides meet in the loss alone. On a CPU each side therefore has a thread (a lane) of its own, with
half of the cores: two barriers a step instead of one an operation, which also stands being disturbed by
other programs. On a GPU there is one lane and the kernels queue up behind each other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rbegir.base.devices import cpu_count
from rbegir.encode.clsm.binarize import slope_at
from rbegir.encode.clsm.clsm import TowerBatch
from rbegir.encode.clsm.draws import Draw
from rbegir.encode.clsm.twotower import FeatureDropout, Side, TwoTower
from rbegir.training.batches import StepBatch
from rbegir.training.config import TrainConfig
from rbegir.training.distributed import gather, sum_gradients, sum_scalar
from rbegir.training.guide import Guide
from rbegir.training.loss import Baseline, Gamma, group_loss, score_function_term
from rbegir.training.optim import RowRMS
from rbegir.training.sharing import Share

INITIAL_GAMMA = 10.0
A = TypeVar("A")
B = TypeVar("B")


class Output(NamedTuple):
    """What one side computes for the loss, or the leaves that stand for it there."""

    vector: Tensor  # [texts, n]
    log_prob: Tensor | None  # [texts] log P of the rows, for the stochastic estimator
    guide: Tensor | None  # [texts, dims] the float embedding beside the codes, see guide.py

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
        torch.autograd.backward([x for x, _ in live], [grad for _, grad in live])


class Engine:
    """Model, γ, optimisers and the step on them. Everything that training changes is here."""

    def __init__(self, model: TwoTower, config: TrainConfig, device: torch.device, share: Share) -> None:
        invariants = torch.sparse.check_sparse_tensor_invariants
        if not invariants.is_enabled():  # type: ignore[no-untyped-call]
            # said explicitly, or some releases of torch warn that nothing was said
            invariants.disable()  # type: ignore[no-untyped-call]
        self.model = model.to(device).train()
        self.config, self.device, self.share = config, device, share
        learned = config.gamma == "learned"
        self.gamma = Gamma(INITIAL_GAMMA if config.gamma == "learned" else config.gamma, learned=learned).to(
            device
        )
        self.guide: Guide | None = None
        if config.guide:
            self.guide = Guide(model.config, config.guide_dims, INITIAL_GAMMA).to(device)
        distinct = share.world > 1 or not model.config.share_towers
        self.tables = [RowRMS(table, distinct=distinct) for table in model.table_parameters()]
        in_tables = {id(table.table) for table in self.tables}
        self.dense = [p for p in model.parameters() if id(p) not in in_tables]
        self.dense += [p for p in self.gamma.parameters() if p.requires_grad]
        self.dense += list(self.guide.parameters()) if self.guide else []
        self.adam = torch.optim.Adam(self.dense, lr=config.lr, fused=device.type == "cuda")
        self.baseline = Baseline()
        self.steps = 0
        self._heads = [
            (side, part.rbe)
            for side, part in (("query", model.query), ("keyword", model.keyword))
            if hasattr(part, "rbe")
        ]
        self._bfloat16 = config.precision == "bfloat16"
        threads = max(1, cpu_count() // 2)
        self._lanes = (
            ThreadPoolExecutor(2, "rbegir-side", initializer=torch.set_num_threads, initargs=(threads,))
            if device.type == "cpu"
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
        """Learn from one batch; the loss before the update, a scalar on the device.

        `mark` is told the name of each part of the step as it ends, for benchmarks.
        """
        mark = mark or (lambda part: None)
        self._prepare_randomness(batch, progress)
        query, keyword = self._both(
            lambda: self._embed("query", batch.query), lambda: self._embed("keyword", batch.keyword)
        )
        mark("forward")
        # The loss sees leaves, so that each side's backward pass is a graph of its own, for its own lane.
        query_leaves, keyword_leaves = query.leaves(), keyword.leaves()
        loss = self._one(lambda: self._loss(batch, query_leaves, keyword_leaves))
        mark("loss")
        self._both(lambda: query.backward(query_leaves), lambda: keyword.backward(keyword_leaves))
        mark("backward")
        sum_gradients(self.dense, (table.table for table in self.tables), self.share)
        self._update(lr_scale)
        mark("update")
        self.steps += 1
        return loss

    def _loss(self, batch: StepBatch, query: Output, keyword: Output) -> Tensor:
        """Gradients into the leaves and γ; the loss of the codes over all processes."""
        groups = (
            batch.target.long(),
            torch.stack([batch.known_rows, batch.known_columns]).long(),
            batch.negatives.long(),
            batch.weight,
        )

        def everyones(keywords: Tensor) -> Tensor:
            return gather(keywords, batch.owned, self.share)  # [distinct keywords of all processes, n]

        loss, losses = group_loss(query.vector, everyones(keyword.vector), self.gamma(), *groups)
        total = sum_scalar(loss.detach().clone(), self.share)
        if self.model.config.estimator == "stochastic":
            everything = float(total)
            baseline = self.baseline.advance(everything)
            loss = loss + score_function_term(
                losses - baseline, batch.weight, everything - baseline, query.log_prob, keyword.log_prob
            )
        if self.guide is not None and query.guide is not None and keyword.guide is not None:
            beside, _ = group_loss(query.guide, everyones(keyword.guide), self.guide.gamma(), *groups)
            loss = loss + self.config.guide * beside
        loss.backward()  # type: ignore[no-untyped-call]
        return total

    def _prepare_randomness(self, batch: StepBatch, progress: float) -> None:
        """Everything random in the network is a function of the seed, the step and the row of the batch."""
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
        if self.share.world == 1:
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
        def tables(chosen: list[RowRMS]) -> None:
            for table in chosen:
                table.step(self.config.table_lr * lr_scale)

        for group in self.adam.param_groups:
            group["lr"] = self.config.lr * lr_scale
        half = (len(self.tables) + 1) // 2
        self._both(lambda: tables(self.tables[:half]), lambda: tables(self.tables[half:]))
        self._one(self.adam.step)
        self.adam.zero_grad(set_to_none=True)

    def _one(self, work: Callable[[], A]) -> A:
        """Run something with a lane's number of threads."""
        return work() if self._lanes is None else self._lanes.submit(work).result()

    def _both(self, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
        """Run two things, at the same time where there are lanes."""
        if self._lanes is None:
            return first(), second()
        one, two = self._lanes.submit(first), self._lanes.submit(second)
        return one.result(), two.result()
