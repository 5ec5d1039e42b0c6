"""Links what a wheel requires into its environment: `python linked_packages.py SITE EXTRA`.

SITE is the environment's site-packages, with the wheel in it. What the wheel names with that extra, and all that this
needs in turn, is taken from the environment of the checkout, which pip resolved; its other packages stay out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement

NAME = "vllm-agentcache"


def link_packages(site: Path, extra: str) -> None:
    (wheel,) = distributions(name=NAME, path=[str(site)])
    for found in find_required(wheel, [extra]):
        for source, target in find_files(found, site):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                os.link(source, target)


def find_required(root: Distribution, extras: Iterable[str]) -> Iterator[Distribution]:
    """Yield all that `root` requires with these extras; what is not installed is for `pip check` to tell."""
    wanted = [(root, extra) for extra in ("", *extras)]
    for found, extra in wanted:
        if not extra and found is not root:
            yield found
        for line in found.requires or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            try:
                needed = distribution(requirement.name)
            except PackageNotFoundError:
                continue
            have = {(other.name, name) for other, name in wanted}
            wanted += [(needed, name) for name in ("", *requirement.extras) if (needed.name, name) not in have]


def find_files(found: Distribution, site: Path) -> Iterator[tuple[Path, Path]]:
    """Yield its files in the checkout's environment, compiled modules too, and where they belong; no commands."""
    for file in found.files or ():
        source, target = Path(str(found.locate_file(file))), site / file
        if ".." in file.parts or not source.is_file():
            continue
        yield source, target
        if source.suffix == ".py" and (compiled := Path(cache_from_source(str(source)))).is_file():
            yield compiled, target.parent / compiled.relative_to(source.parent)


if __name__ == "__main__":
    link_packages(Path(sys.argv[1]), sys.argv[2])
