"""Where files that can be made again are kept."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

CACHE_VARIABLE = "AGENTFLOW_CACHE"


def cache_root() -> Path:
    """The folder of converted models and unpacked data: AGENTFLOW_CACHE, or the platform's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or user_cache_path("agentflow"))
