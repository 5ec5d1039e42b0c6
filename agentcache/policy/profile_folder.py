"""Picks the profile that is meant: the file that the user names, or the one of a folder that fits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import InputError
from agentcache.policy.cost import CostProfile, ProfileKey, read_profile


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a profile is to be of. `models` are the names that the model goes by; `dtype` None takes any."""

    models: Collection[str]
    gpu: str
    tensor_parallel_size: int
    dtype: str | None = None

    def __str__(self) -> str:
        """Describe it as a profile's key is described."""
        dtype = f", {self.dtype}" if self.dtype else ""
        return f"{' or '.join(self.models)} on {self.gpu}, tensor parallel size {self.tensor_parallel_size}{dtype}"

    def fits(self, key: ProfileKey) -> bool:
        """Tell whether a profile with this key is wanted."""
        return (
            key.model in self.models
            and (key.gpu, key.tensor_parallel_size) == (self.gpu, self.tensor_parallel_size)
            and self.dtype in (None, key.dtype)
        )


def pick_profile(path: Path, wanted: Wanted) -> tuple[Path, CostProfile]:
    """Read the file, whatever it is of, or the one of a folder that fits, and say which.

    Raises InputError for a file that cannot be read, and for a folder that has none that fits, or several.
    """
    if not path.is_dir():
        return path, read_profile(path)
    found, others = _read_folder(path)
    fitting = {file: profile for file, profile in found.items() if wanted.fits(profile.key)}
    if len(fitting) > 1:
        names = ", ".join(file.name for file in fitting)
        raise InputError(f"{path}: has {len(fitting)} profiles of {wanted}: {names}; name one of these files")
    if not fitting:
        has = "; ".join(f"{file.name} is of {profile.key}" for file, profile in found.items()) or "there are no others"
        broken = f"; not a profile: {', '.join(file.name for file in others)}" if others else ""
        raise InputError(
            f"{path}: has no profile of {wanted} ({has}{broken}); measure it with agentcache profile, or name a file"
        )
    return next(iter(fitting.items()))


def _read_folder(folder: Path) -> tuple[dict[Path, CostProfile], list[Path]]:
    """Read the folder's profiles, and list the files beside them that look like one and are none."""
    found, others = {}, []
    for file in sorted(folder.glob("*.json")):
        try:
            found[file] = read_profile(file)
        except InputError:
            others.append(file)
    return found, others
