"""The output folder of a run, and the state in it that `--resume` starts from: one file, replaced atomically.

Everything random in training is a function of (seed, epoch, step), so the state is the parameters, the
optimisers' numbers and two counters. It is one safetensors file, `resume.safetensors`, with its JSON part in
the header's metadata. A run resumed before the first save starts from the beginning, with the same result.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rbegir.base import disk
from rbegir.encode.clsm import checkpoint
from rbegir.errors import CorruptError, FileError, MismatchError, VersionError
from rbegir.training.config import TrainConfig
from rbegir.training.step import Learner

NAME = "resume.safetensors"
FORMAT, VERSION = "rbegir-training", 1


@dataclass
class Position:
    """How far training has come."""

    epoch: int = 0  # the one under way
    step: int = 0  # batches of it that are done
    loss_sum: float = 0.0  # over them
    done: int = 0  # pairs trained on, all epochs
    history: list[dict[str, float]] = field(default_factory=list)  # one entry per finished epoch
    best_epoch: int | None = None


def finished(out: Path, settings: TrainConfig, *, resume: bool) -> bool:
    """Whether `out` holds the finished model of the run to resume; refuse other settings and used folders."""
    if not out.exists():
        return False
    if not out.is_dir():
        raise FileError(f"out must be a directory, but {out} is a file", hint="choose another path")
    if not resume and any(out.iterdir()):
        raise FileError(
            f"{out} is not empty", hint="choose another directory, or continue a run with --resume"
        )
    if not resume or (out / NAME).exists() or not (out / checkpoint.CONFIG).exists():
        return False
    made = checkpoint.read(out)[2].get("training", {})
    given = {name: value for name, value in settings.to_dict().items() if value is not None}
    _compare({name: made.get(name) for name in given}, given)
    return True


def save(
    out: Path, learner: Learner, position: Position, best: dict[str, Tensor] | None, identity: dict[str, Any]
) -> None:
    """Replace the state under `out`. `identity` is what a resumed run must have in common with this one."""
    from safetensors.torch import save_file

    tensors = _tensors(learner)
    for i, parameter in enumerate(learner.dense):
        moments = learner.adam.state.get(parameter, {})
        tensors |= {f"adam.{i}.{name}": value for name, value in moments.items()}
    tensors |= {f"best.{name}": value for name, value in (best or {}).items()}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "identity": identity,
        "position": vars(position),
        "steps": learner.steps,
        "baseline": learner.baseline,
    }
    temporary = out / f".{NAME}.partial"
    with disk.explained("write the training state under", out):
        save_file(tensors, temporary, metadata={"state": json.dumps(about)})
        disk.replace(temporary, out / NAME)


@torch.no_grad()
def load(
    out: Path, learner: Learner, identity: dict[str, Any]
) -> tuple[Position, dict[str, Tensor] | None] | None:
    """Restore the saved state of the learner → (position, best parameters so far); None if there is none."""
    from safetensors import SafetensorError, safe_open

    path = out / NAME
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt", device=str(learner.device)) as file:
            about = json.loads((file.metadata() or {}).get("state", "{}"))
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptError(
            f"the training state {path} cannot be read: {error}", hint="remove the directory and train again"
        ) from None
    if about.get("format") != FORMAT:
        raise CorruptError(f"{path} is not a training state", hint="remove the directory and train again")
    if about["version"] != VERSION:
        raise VersionError(f"the training state {path} has version {about['version']}, expected {VERSION}")
    _compare(about["identity"], identity)

    def under(prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}

    for name, value in _tensors(learner).items():
        value.copy_(tensors[name])
    for i, parameter in enumerate(learner.dense):
        if values := under(f"adam.{i}."):
            learner.adam.state[parameter] = values
    learner.steps, learner.baseline = about["steps"], about["baseline"]
    return Position(**about["position"]), under("best.") or None


def _tensors(learner: Learner) -> dict[str, Tensor]:
    """The tensors that training changes, by name in the file; not Adam's moments and the best parameters."""
    tensors = {f"model.{name}": value for name, value in learner.model.state_dict().items()}
    tensors["gamma"] = learner.gamma.log.detach()
    if learner.guide is not None:
        tensors |= {f"guide.{name}": value for name, value in learner.guide.state_dict().items()}
    for i, table in enumerate(learner.tables):
        tensors |= {f"table.{i}.second": table.second, f"table.{i}.steps": table.steps}
    return tensors


def _compare(saved: dict[str, Any], now: dict[str, Any]) -> None:
    now = json.loads(json.dumps(now))
    changed = [key for key in saved.keys() | now.keys() if saved.get(key) != now.get(key)]
    if changed:
        told = "; ".join(f"{key} was {saved.get(key)!r}, now {now.get(key)!r}" for key in sorted(changed))
        raise MismatchError(
            f"the run to resume had other settings: {told}",
            hint="repeat the settings, or train into a new directory",
        )


def remove(out: Path) -> None:
    """Remove the state: training is complete."""
    for name in (NAME, f".{NAME}.partial"):
        (out / name).unlink(missing_ok=True)
