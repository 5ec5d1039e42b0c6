"""The sources of classes, each found once: to find those of vLLM takes longer than all else in its check."""

from __future__ import annotations

import inspect
from functools import cache

get_source = cache(inspect.getsource)
