"""A float head that guides the tower while codes are learned, and is thrown away afterwards.

    L = L(codes) + weight · L(tanh(G f))         G: [n, m] of either side, with a γ of its own

The gradient that reaches the tower through ρ is an estimate, and a noisy one. The same loss on a plain float
embedding of the same features has an exact gradient: it keeps the tower on course while the head learns to
put into bits what the tower found. Only training knows the head; a checkpoint has no trace of it, and codes
cost what they cost before. A model that is float on both sides is its own guide and gets none.

Recall@10 of rbe* among 4.5 million titles rose by 0.008 in one pair of runs, as much as by twice the epochs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rbegir.model.presets import FLOAT, ModelConfig
from rbegir.model.twotower import Side
from rbegir.training.loss import Gamma


class Guide(nn.Module):
    """The float heads of both sides, which start alike."""

    def __init__(self, config: ModelConfig, gamma: float) -> None:
        super().__init__()
        self.query = nn.Linear(config.width, config.n, bias=config.bias)
        self.keyword = nn.Linear(config.width, config.n, bias=config.bias)
        self.keyword.load_state_dict(self.query.state_dict())
        self.gamma = Gamma(gamma, learned=True)

    def forward(self, side: Side, features: Tensor) -> Tensor:
        """[texts, m] → [texts, n]"""
        return torch.tanh((self.query if side == "query" else self.keyword)(features))


def needs_guide(config: ModelConfig) -> bool:
    """Whether a side of the model is made of bits."""
    return (config.query_planes, config.keyword_planes) != (FLOAT, FLOAT)
