"""Tasks: functions that ``remote`` decorated. Those with the same options are a crew's."""

from __future__ import annotations

from typing import Any

from ... import Crew
from . import _options
from ._refs import spread, started


class RemoteFunction(_options.Remote):
    """A function that runs elsewhere: ``function.remote(...)``."""

    _is_actor = False

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the task; a ref of what it returns, or a list of them."""
        function, options = self.__muster_class__, self._options

        def start(args: Any, kwargs: Any) -> Any:
            return Crew.shared(_options.config(function, options)).run(function, *args, **kwargs)

        ref = started(start, function.__name__, args, kwargs)
        return spread(ref, options.get("num_returns"))
