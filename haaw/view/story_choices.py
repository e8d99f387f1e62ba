"""How each token was chosen: the scores, every step of the plan with its survivors, the draw, the runners-up."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from haaw.errors import HaawError

if TYPE_CHECKING:
    from haaw.view.story import Facts

SHOWN_CANDIDATES = 12

SETTINGS = {
    "repetition_penalty": "repetition_penalty",
    "temper": "temperature",
    "keep_top_k": "top_k",
    "keep_top_p": "top_p",
    "keep_min_p": "min_p",
}


class Candidate(TypedDict):
    """A token that stood to be chosen. `lost_at` is the index of the plan's step that dropped it.

    `probability` is the model's own, `left` that among those which survived the plan (0 where it was dropped).
    """

    id: int
    text: str
    score: float
    probability: float
    left: float
    lost_at: int | None


class Choice(TypedDict):
    """One choice: `plan` lists the steps that did something, with how many candidates each left."""

    step: int
    token: int
    chosen_id: int
    plan: list[dict[str, Any]]
    candidates: list[Candidate]
    vocabulary: int
    uniform: float | None
    below: float
    upto: float
    entropy: float
    rank: int


class Chooser:
    """Makes the choices of a request out of what the trace holds or can compute."""

    def __init__(self, trace: Any, facts: "Facts", text_of: Callable[[int], str]) -> None:
        self._trace = trace
        self._text_of = text_of
        self._settings = (facts.first("settings") or {}).get("asked", {}).get("sampling", {})
        self._drawn = {(row["stage"], row["step"]): fact for row, fact in facts.placed("drawn")}

    def choice(
        self, step: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]
    ) -> tuple[Choice | None, str | None]:
        """How a step chose; or None, and why its scores cannot be had."""
        try:
            logits_TV = self._array(next(op for op in ops if _makes(op, "logits")), 0)
            last = next(op for op in reversed(ops) if op["op"] in ("draw", "greedy"))
            chosen = int(self._array(last, 0).reshape(-1)[0])
            plan, survivors = self._plan(ops, logits_TV.shape[-1])
        except HaawError as error:
            return None, str(error)
        except (LookupError, StopIteration):
            return None, "The trace does not hold all operations of this choice."
        logits_V = logits_TV.reshape(-1, logits_TV.shape[-1])[-1].astype(np.float64)
        drawn = self._drawn.get((step["stage"], step["step"]))
        ids_N, left_N = survivors[-1] if survivors else (np.array([chosen]), np.array([1.0]))
        before_N = np.concatenate([[0.0], np.cumsum(left_N)])
        place = int(np.searchsorted(ids_N, chosen))
        own_V = _probabilities(logits_V)
        falling_V = np.argsort(-logits_V, kind="stable")
        shown = list(dict.fromkeys([*falling_V[:SHOWN_CANDIDATES].tolist(), chosen]))
        kept = [set(ids) if ids is not None else None for ids in (each.pop("ids") for each in plan)]
        made: Choice = {
            "step": step["step"] if step["stage"] == "decode" else 0,
            "token": step["token"],
            "chosen_id": chosen,
            "plan": plan,
            "candidates": [self._candidate(i, logits_V, own_V, ids_N, left_N, kept) for i in shown],
            "vocabulary": len(logits_V),
            "uniform": None if drawn is None else float(drawn["uniform"]),
            "below": float(before_N[place]),
            "upto": float(before_N[place + 1]),
            "entropy": float(-(own_V * np.log2(np.maximum(own_V, 1e-300))).sum()),
            "rank": int(np.flatnonzero(falling_V == chosen)[0]) + 1,
        }
        return made, None

    def _candidate(
        self,
        token_id: int,
        logits_V: np.ndarray,
        own_V: np.ndarray,
        ids_N: np.ndarray,
        left_N: np.ndarray,
        kept: list[set[int] | None],
    ) -> Candidate:
        return {
            "id": token_id,
            "text": self._text_of(token_id),
            "score": float(logits_V[token_id]),
            "probability": float(own_V[token_id]),
            "left": float(left_N[ids_N == token_id].sum()),
            "lost_at": next(
                (n for n, ids in enumerate(kept) if ids is not None and token_id not in ids), None
            ),
        }

    def _plan(
        self, ops: Sequence[Mapping[str, Any]], size: int
    ) -> tuple[list[dict[str, Any]], list[tuple[np.ndarray, np.ndarray]]]:
        """The plan's steps with the candidates before and after each; and what every filter left, as ids and shares."""
        plan: list[dict[str, Any]] = []
        survivors: list[tuple[np.ndarray, np.ndarray]] = []
        before = size
        for op in ops:
            if op["part"] != "choose" or op["op"] in ("log_softmax", "top_candidates"):
                continue
            ids, after = None, before
            if len(op["outputs"]) == 2:
                ids_N, scores_N = self._array(op, 0), self._array(op, 1)
                survivors.append((ids_N, _probabilities(scores_N.astype(np.float64))))
                ids, after = ids_N.tolist(), len(ids_N)
            elif op["op"] in ("draw", "greedy"):
                after = 1
            setting = self._settings.get(SETTINGS.get(op["op"], ""))
            path = op["outputs"][0]["path"]
            plan.append(
                {
                    "op": op["op"],
                    "setting": setting,
                    "before": before,
                    "after": after,
                    "path": path,
                    "ids": ids,
                }
            )
            before = after
        return plan, survivors

    def _array(self, op: Mapping[str, Any], number: int) -> np.ndarray:
        return np.asarray(self._trace.value_of(op["outputs"][number]).array)


def _probabilities(scores_N: np.ndarray) -> np.ndarray:
    weights_N = np.exp(scores_N - scores_N.max())
    probabilities_N: np.ndarray = weights_N / weights_N.sum()
    return probabilities_N


def _makes(op: Mapping[str, Any], name: str) -> bool:
    return any(each["path"].rsplit(".", 1)[-1].split("#")[0] == name for each in op["outputs"])
