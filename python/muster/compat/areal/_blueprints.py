"""What a worker's server answers beyond a guard's: engines, and tensors that they returned.

Whatever concerns engines is asked of the host, on the one thread that runs them, as
controllers ask it. Tensors are given and taken beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._areal import serialization, tensors
from ._http import Refusal, Routes
from ._trees import plain
from .guard import GuardState, needed, set_env

# --- engines ------------------------------------------------------------------------


def _configure(state: GuardState, data: Any) -> Any:
    """Take the experiment's configuration, of which workers need the seed."""
    given, rank = needed(data, "config"), needed(data, "rank")
    config = _read(state, given)
    if isinstance(config, dict):  # also one of a class that is not known here
        seed = config.get("seed", (config.get("data") or {}).get("seed"))
    else:
        seed = getattr(config, "seed", None)
    if seed is None:
        raise Refusal(400, "'config' has no seed")
    state.host.ask("do_configure", seed=seed, rank=rank)
    return {"status": "success", "message": "Worker configured.", "result": None}


def _asking(
    what: str, texts: tuple[str, str], values: tuple[str, ...], message: str = ""
) -> Callable[..., Any]:
    """Has the host do something: by two texts that a request needs, and values that it may have;
    the reply has the texts, and a message of them where that is AReaL's."""

    def serve(state: GuardState, data: Any) -> Any:
        named = {key: needed(data, key, str) for key in texts}
        given = {key: data[key] for key in values if data.get(key)}
        result = state.host.ask(what, **named, **plain(_read(state, given)))
        reply = {"message": message.format(**named)} if message else {}
        reply |= {"status": "success", **named}
        return {**reply, "result": serialization().serialize_value(result)}

    return serve


def _read(state: GuardState, value: Any) -> Any:
    """A value of a request; what it and tensors need is imported first, where engines are."""
    state.host.ready()
    return serialization().deserialize_value(value)


engine_bp: Routes = {
    ("POST", "/configure"): _configure,
    ("POST", "/set_env"): set_env,
    ("POST", "/create_engine"): _asking(
        "do_create_engine",
        ("engine", "engine_name"),
        ("init_args", "init_kwargs"),
        "Engine '{engine_name}' created and initialized",
    ),
    ("POST", "/call"): _asking(
        "do_call", ("method", "engine_name"), ("args", "kwargs", "rpc_meta")
    ),
}


# --- tensors ------------------------------------------------------------------------


def _store(state: GuardState, data: Any) -> Any:
    value = _read(state, data["value"])
    tensors().store(data["name"], value)
    return {"status": "ok", "shard_id": data["name"]}


def _shard(state: GuardState, data: Any) -> Any:
    [found] = _found(state, [data["name"]], 404, f"Shard {data['name']} not found")
    return serialization().serialize_value(found)


def _shards(state: GuardState, data: Any) -> Any:
    why = "One or more requested shards were not found"
    return serialization().serialize_value(_found(state, _ids(data), 400, why))


def _found(state: GuardState, shards: list[str], status: int, why: str) -> list[Any]:
    state.host.ready()
    found, missing = [], []
    for shard in shards:
        try:
            found.append(tensors().fetch(shard))
        except KeyError:
            missing.append(shard)
    if missing:
        raise Refusal(status, why, missing_shard_ids=missing)
    return found


def _clear(state: GuardState, data: Any) -> Any:
    state.host.ready()
    count = sum(tensors().remove(shard) for shard in _ids(data))
    return {"status": "ok", "cleared_count": count, **tensors().storage_stats()}


def _ids(data: Any) -> list[str]:
    ids = data.get("shard_ids")
    if not isinstance(ids, list) or not all(isinstance(entry, str) for entry in ids):
        raise Refusal(400, "'shard_ids' must be a list")
    return ids


data_bp: Routes = {
    ("PUT", "/data/*"): _store,
    ("GET", "/data/*"): _shard,
    ("POST", "/data/batch"): _shards,
    ("DELETE", "/data/clear"): _clear,
}
