"""The training loop: batches, loss, optimisers, checkpoints and the account of what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from weights_tools.train import checkpoint
from weights_tools.train.muon import make_optimisers
from weights_tools.train.network import Network
from weights_tools.train.packing import make_batch
from weights_tools.train.recipe import Recipe

CHECKPOINT_EVERY_S = 180.0


@dataclass
class Progress:
    """How far a training is; survives in the checkpoint."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Budget:
    """When a training is over: after so many minutes, or after so many tokens if those are given."""

    minutes: float
    tokens: int | None = None

    def share(self, progress: Progress) -> float:
        """Say which share of the budget is used up, from 0 to 1."""
        used = progress.tokens / self.tokens if self.tokens else progress.elapsed_s / (60 * self.minutes)
        return min(1.0, used)


class Training:
    """A network being trained. `run` goes on until the budget is used up and may be interrupted at any time."""

    def __init__(
        self, recipe: Recipe, tokenizer: Any, digest: str, *, compiled: str = "no", device: str = "cpu"
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.tokenizer, self.digest, self.device = recipe, tokenizer, digest, device
        self.network = Network(recipe.shape).to(device)
        self.optimisers = make_optimisers(self.network, recipe.muon_lr, recipe.adam_lr, recipe.muon_decay)
        self.progress = Progress()
        self._tables: dict[int, Any] = {}
        self._loss = torch.compile(self._plain_loss, dynamic=False) if compiled == "yes" else self._plain_loss

    def _plain_loss(self, ids: Any, targets: Any, weights: Any, tables: Any, mask: Any) -> Any:
        with torch.autocast(self.device, torch.bfloat16):
            return self.network.loss(ids, targets, weights, tables, mask)

    def step(self, share: float) -> float:
        """Take one step at this share of the budget; gives the loss."""
        recipe, progress = self.recipe, self.progress
        tokens = recipe.tokens_at(share)
        rows = recipe.batch_tokens // tokens
        if tokens not in self._tables:
            (cosine, sine), mask = self.network.tables(tokens)
            self._tables[tokens] = (cosine.to(self.device), sine.to(self.device)), mask.to(self.device)
        arrays = make_batch(
            recipe.seed, progress.step, self.tokenizer, rows, tokens, recipe.mixture_at(share)
        )
        rate = recipe.rate_at(share, progress.step)
        loss = self._loss(
            *(torch.from_numpy(array).to(self.device) for array in arrays), *self._tables[tokens]
        )
        loss.backward()
        for optimiser, full_rate in zip(self.optimisers, (recipe.muon_lr, recipe.adam_lr), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = full_rate * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        progress.step += 1
        progress.tokens += rows * tokens
        return float(loss.detach())

    def run(
        self, budget: Budget, folder: Path | None, watch: Callable[[Progress, float], None] | None = None
    ) -> Progress:
        """Train until the budget is used up, with a checkpoint in `folder` every few minutes and at the end."""
        progress = self.progress
        begun, before = time.monotonic(), progress.elapsed_s
        saved = begun
        try:
            while (share := budget.share(progress)) < 1.0:
                loss = self.step(share)
                progress.elapsed_s = before + time.monotonic() - begun
                progress.losses.append((progress.step, round(loss, 4)))
                if watch:
                    watch(progress, share)
                if folder and time.monotonic() - saved > CHECKPOINT_EVERY_S:
                    self.save(folder)
                    saved = time.monotonic()
        finally:
            if folder and progress.step:
                self.save(folder)
        return progress

    def save(self, folder: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        progress = self.progress
        facts = {
            "digest": self.digest,
            "step": progress.step,
            "tokens": progress.tokens,
            "elapsed_s": progress.elapsed_s,
            "losses": progress.losses,
        }
        checkpoint.write(folder, self._tensors(), {key: json.dumps(value) for key, value in facts.items()})

    def resume(self, folder: Path) -> bool:
        """Go on from the checkpoint in a folder, if it has one. Raises `CheckpointError` for one of another recipe."""
        found = checkpoint.read(folder, self.digest)
        if found is None:
            return False
        tensors, facts = found
        self._fill(tensors)
        losses = [(int(step), float(loss)) for step, loss in facts["losses"]]
        self.progress = Progress(int(facts["step"]), int(facts["tokens"]), float(facts["elapsed_s"]), losses)
        return True

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Name every tensor that a continued training needs."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        muon, adam = self.optimisers
        for number, group in enumerate(muon.param_groups):
            tensors[f"muon.{number}"] = muon.state[group["params"][0]]["momentum"]
        for number, parameter in enumerate(adam.param_groups[0]["params"]):
            for part, value in adam.state[parameter].items():
                tensors[f"adam.{number}.{part}"] = value
        return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}

    def _fill(self, tensors: dict[str, torch.Tensor]) -> None:
        state = {
            name.removeprefix("network."): value
            for name, value in tensors.items()
            if name.startswith("network.")
        }
        self.network.load_state_dict(state)
        muon, adam = self.optimisers
        for number, group in enumerate(muon.param_groups):
            muon.state[group["params"][0]]["momentum"] = tensors[f"muon.{number}"].to(self.device)
        for number, parameter in enumerate(adam.param_groups[0]["params"]):
            averages = {
                part: tensors[f"adam.{number}.{part}"].to(self.device) for part in ("exp_avg", "exp_avg_sq")
            }
            adam.state[parameter] = {"step": tensors[f"adam.{number}.step"], **averages}
