"""Prices prefill, and so the eviction of a cached block: the latency model, its fit, and the fit as a file.

A prompt is four runs of tokens, in order: l1 cached, q1 computed, l2 cached, q2 computed; its prefill takes
k1·l1 + k2·q1 + k3·l2 + k4·q2 + k5·(l1+q1)² + k6·q2·(l1+q1+l2+q2) + intercept seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentcache.errors import InputError, in_one_line
from agentcache.policy.gpus import match_gpu
from agentcache.policy.link_profile import LinkProfile
from agentcache.policy.price import RecomputeCost
from agentcache.policy.step_cost import StepCost
from tool_runtime.bounds import MAX_CACHE_TOKENS

# No block costs less: evictors divide by it.
_FLOOR_S = 1e-9
TERMS = ("l1", "q1", "l2", "q2", "(l1+q1)²", "q2·(l1+q1+l2+q2)", "intercept")
# One more than there are coefficients: fewer leave no residual to judge the fit by.
MIN_BATCHES = len(TERMS) + 1
# Relative to the largest singular value of the scaled columns. Batches that vary every segment stay above 1e-3.
_RANK_TOLERANCE = 1e-6


class PrefillBatch(NamedTuple):
    """One measured prefill: the four segments in tokens, and how long it took."""

    l1: int
    q1: int
    l2: int
    q2: int
    seconds: float


class CostModel(BaseModel):
    """Coefficients in seconds per token (k1 to k4), per token squared (k5, k6), and seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    k1: float
    k2: float
    k3: float
    k4: float
    k5: float
    k6: float
    intercept_s: float

    def predict(self, l1: int, q1: int, l2: int, q2: int) -> float:
        """Predict the seconds of a prefill."""
        linear = self.k1 * l1 + self.k2 * q1 + self.k3 * l2 + self.k4 * q2
        return linear + self.k5 * (l1 + q1) ** 2 + self.k6 * q2 * (l1 + q1 + l2 + q2) + self.intercept_s

    def recompute_cost(self, block_tokens: int) -> RecomputeCost:
        """Derive what a block of `block_tokens` tokens costs when its segment's first block turns from l2 to q1.

        That is the exact difference of two predictions, T(l1, q1+b, l2−b, q2) − T(l1, q1, l2, q2) with l1+q1+b the
        position. With b = 1 it is the paper's 2·k5·n + (k2−k3+k5), whose n counts the tokens before the block.
        """
        per_token_s = self.k2 - self.k3 - self.k5 * block_tokens
        return RecomputeCost(2 * self.k5 * block_tokens, block_tokens * per_token_s, _FLOOR_S)


class Residual(NamedTuple):
    """Measured minus predicted seconds of one batch."""

    batch: PrefillBatch
    seconds: float


@dataclass(frozen=True, slots=True)
class FittedCostModel:
    """`residuals` has every batch, the worst first."""

    cost_model: CostModel
    r_squared: float
    residuals: tuple[Residual, ...]


def fit_cost_model(batches: Sequence[PrefillBatch]) -> FittedCostModel:
    """Fit by least squares over the batches, at least `MIN_BATCHES`. Raises InputError when they leave a term open."""
    columns = _term_columns(batches)
    seconds = np.array([batch.seconds for batch in batches])
    # Squares of tokens are 1e5 times larger than tokens: unscaled, the solver would take the small ones for noise.
    scales = np.where((largest := np.abs(columns).max(axis=0)) > 0, largest, 1.0)
    _check_rank(columns / scales, batches)
    scaled, *_ = np.linalg.lstsq(columns / scales, seconds, rcond=None)
    coefficients = scaled / scales
    errors = seconds - columns @ coefficients
    variation = float(np.sum((seconds - seconds.mean()) ** 2))
    residuals = (Residual(batch, float(error)) for batch, error in zip(batches, errors, strict=True))
    return FittedCostModel(
        cost_model=CostModel(**dict(zip(CostModel.model_fields, map(float, coefficients), strict=True))),
        r_squared=1 - float(errors @ errors) / variation,
        residuals=tuple(sorted(residuals, key=lambda residual: -abs(residual.seconds))),
    )


def _term_columns(batches: Sequence[PrefillBatch]) -> NDArray[np.float64]:
    """Return a row for each batch, a column for each term, in the order of TERMS and of CostModel's fields."""
    l1, q1, l2, q2, _ = np.array(batches, dtype=np.float64).T
    return np.stack([l1, q1, l2, q2, (l1 + q1) ** 2, q2 * (l1 + q1 + l2 + q2), np.ones_like(l1)], axis=1)


def _check_rank(columns: NDArray[np.float64], batches: Sequence[PrefillBatch]) -> None:
    """Name the terms that the batches leave open: those that take part in a direction without any effect."""
    _, singular, directions = np.linalg.svd(columns)
    open_directions = directions[singular < _RANK_TOLERANCE * singular[0]]
    if not len(open_directions):
        return
    taking_part = np.abs(open_directions).max(axis=0) > 1e-3
    terms = ", ".join(term for term, part in zip(TERMS, taking_part, strict=True) if part)
    constants = {name: {getattr(batch, name) for batch in batches} for name in ("l1", "q1", "l2", "q2")}
    reason = ", ".join(
        f"{name} is {min(values)} in every batch" for name, values in constants.items() if len(values) == 1
    )
    raise InputError(
        f"cost model: the batches do not tell {terms} apart{f' ({reason})' if reason else ''}; "
        "measure batches in which l1, q1, l2 and q2 vary independently"
    )


class ProfileKey(BaseModel):
    """Identifies what a measurement holds for, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    gpu: str = Field(min_length=1)
    tensor_parallel_size: int = Field(ge=1)
    dtype: str = Field(min_length=1)

    @field_validator("gpu")
    @classmethod
    def _as_listed(cls, gpu: str) -> str:
        """Profiles of before a GPU had a data sheet here have its driver's name."""
        return match_gpu(gpu) or gpu

    def __str__(self) -> str:
        """Describe what was measured, as messages name it."""
        return f"{self.model} on {self.gpu}, tensor parallel size {self.tensor_parallel_size}, {self.dtype}"

    @property
    def file_name(self) -> str:
        """Return the name of the profile's file."""
        parts = (self.model, self.gpu, f"tp{self.tensor_parallel_size}", self.dtype)
        return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part) for part in parts) + ".json"


class StepProfile(BaseModel):
    """A step cost fitted to `count` measured steps."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    count: int = Field(ge=1)
    r_squared: float = Field(le=1)
    step_cost: StepCost

    @field_validator("step_cost")
    @classmethod
    def _not_negative(cls, cost: StepCost) -> StepCost:
        for name, value in asdict(cost).items():
            if isinstance(value, float) and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; must be finite and not negative")
        return cost


class CostProfile(BaseModel):
    """A cost model with where it comes from: `measured` is False for analytic presets, `source` says more.

    `steps` is what a simulator needs; a profile without it serves policies only. `link` is what a CPU cache
    needs; None where it was not measured. `kv_tokens` are those that the engine had room for beside the model, by
    vLLM's own count; None in profiles of older versions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    key: ProfileKey
    measured: bool
    source: str = Field(min_length=1)
    batches: int = Field(ge=MIN_BATCHES)
    r_squared: float = Field(le=1)
    cost_model: CostModel
    steps: StepProfile | None = None
    link: LinkProfile | None = None
    kv_tokens: int | None = Field(default=None, ge=1, le=MAX_CACHE_TOKENS)


def save_profile(profile: CostProfile, folder: Path) -> Path:
    """Write `profile.key.file_name` into the folder, which is made if need be, and return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / profile.key.file_name
    path.write_text(profile.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return path


def read_profile(path: Path) -> CostProfile:
    """Load a profile, whatever it is of. Raises InputError when the file is missing or broken."""
    # A pipe would be waited for.
    if not path.is_file():
        raise InputError(f"{path}: no such file; name a cost profile that agentcache profile wrote")
    try:
        return CostProfile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot read the cost profile: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "file"
        raise InputError(f"{path}: not a cost profile: {field}: {in_one_line(ValueError(first['msg']))}") from None
