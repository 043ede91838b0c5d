"""A platform as accelerator libraries have it: found when it is first asked, and never sent."""

from __future__ import annotations

import os
from typing import Any, NoReturn


class _Platform:
    """Refuses to be pickled, and to be found before the environment says what it is."""

    def __init__(self) -> None:
        self._device: str | None = None

    def device(self) -> str:
        if self._device is None:
            self._device = f"{os.environ['AREAL_PLATFORM']}:{os.environ['AREAL_LATE']}"
        return self._device

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a platform belongs to its process and cannot be pickled")


current_platform = _Platform()
