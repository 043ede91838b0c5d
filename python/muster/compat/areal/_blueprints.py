"""What a worker's server answers beyond a guard's: engines, and tensors that they returned.

Whatever concerns engines is asked of the host, on the one thread that runs them, as
controllers ask it. Tensors are given and taken beside it.
"""

from __future__ import annotations

from typing import Any

from . import _engines, _tensors
from ._areal import serialization, tensors
from ._client import Refusal
from ._trees import plain
from .guard import GuardState, Routes, needed, set_env

# --- engines ------------------------------------------------------------------------


def _health(state: GuardState, _: Any) -> Any:
    names, forks = list(state.host.engines()), len(state.forked_children)
    about = {"engine_count": len(names), "engines": names, "forked_children": forks}
    return {"status": "healthy", **about}


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


def _create_engine(state: GuardState, data: Any) -> Any:
    path, name = needed(data, "engine", str), needed(data, "engine_name", str)
    given = {"init_args": data.get("init_args") or [], "init_kwargs": data.get("init_kwargs") or {}}
    _ask(state, "create_engine", given, engine=path, engine_name=name)
    message = f"Engine '{name}' created and initialized"
    return {"status": "success", "message": message, "engine_name": name, "result": None}


def _call(state: GuardState, data: Any) -> Any:
    """Call an engine; tensors that it returns are named."""
    named = {"method": needed(data, "method", str), "engine_name": needed(data, "engine_name", str)}
    given = {"args": data.get("args") or [], "kwargs": data.get("kwargs") or {}}
    result = _ask(state, "call", given, **named, rpc_meta=data.get("rpc_meta"))
    return {"status": "success", "result": serialization().serialize_value(result)}


def _ask(state: GuardState, what: str, given: Any, **more: Any) -> Any:
    """Ask the host, with values of a request."""
    values = plain(_read(state, given))
    try:
        return state.host.ask(f"do_{what}", **values, **more)
    except Exception as error:
        cause = None if isinstance(error, Refusal) else error
        raise _engines.refusal(error, what, more) from cause


def _read(state: GuardState, value: Any) -> Any:
    """A value of a request; what it and tensors need is imported first, where engines are."""
    _home(state)
    return serialization().deserialize_value(value)


def _home(state: GuardState) -> Any:
    if not state.host.is_warm:
        state.host.ask("warm")
    return tensors()


engine_bp: Routes = {
    ("GET", "/health"): _health,
    ("POST", "/configure"): _configure,
    ("POST", "/set_env"): set_env,
    ("POST", "/create_engine"): _create_engine,
    ("POST", "/call"): _call,
}


# --- tensors ------------------------------------------------------------------------


def _store(state: GuardState, data: Any) -> Any:
    _home(state).store(data["name"], _read(state, data["value"]))
    return {"status": "ok", "shard_id": data["name"]}


def _shard(state: GuardState, data: Any) -> Any:
    try:
        return serialization().serialize_value(_found(_home(state), data["name"]))
    except KeyError:
        raise Refusal(404, f"Shard {data['name']} not found") from None


def _shards(state: GuardState, data: Any) -> Any:
    home, found, missing = _home(state), [], []
    for shard in _ids(data):
        try:
            found.append(_found(home, shard))
        except KeyError:
            missing.append(shard)
    if missing:
        said = "One or more requested shards were not found"
        raise Refusal(400, said, missing_shard_ids=missing)
    return serialization().serialize_value(found)


def _found(home: Any, shard: str) -> Any:
    """A tensor that was put here, or that an engine of Muster's returned."""
    near = _tensors.backend()
    try:
        return home.fetch(shard)
    except KeyError:
        if near is None or not _tensors.is_ours(shard):
            raise
    try:
        return near.take([shard])[0]
    except RuntimeError:
        raise KeyError(shard) from None


def _clear(state: GuardState, data: Any) -> Any:
    home, near, shards = _home(state), _tensors.backend(), _ids(data)
    count = sum(home.remove(shard) for shard in shards)
    stats = home.storage_stats()
    if near is not None:
        dropped, sizes = near.clear(shards, state.node_addr)
        count += dropped
        stats = {
            "num_tensors": stats["num_tensors"] + len(sizes),
            "total_bytes": stats["total_bytes"] + sum(sizes),
        }
    return {"status": "ok", "cleared_count": count, **stats}


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
