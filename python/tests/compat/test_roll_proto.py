"""DataProto as ROLL has it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
TensorDict = pytest.importorskip("tensordict").TensorDict

from muster import Batch, _values  # noqa: E402
from muster.compat import roll  # noqa: E402
from muster.compat._roll import proto  # noqa: E402
from muster.compat.roll import DataProto  # noqa: E402


def objects(*items: Any) -> Any:
    return roll.custom_np_concatenate([items])


def rows(n: int = 5, **meta: Any) -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(n * 2).reshape(n, 2), "b": torch.arange(float(n))},
        {"c": [{"id": at} for at in range(n)]},
        meta or None,
    )


def sent(data: Any) -> Any:
    """A value as it arrives elsewhere."""
    bufs: list[Any] = []
    body = _values.encode(data, bufs)
    return _values.decode(body, [memoryview(bytearray(buf)) for buf in bufs])


def frozen(data: Any) -> bool:
    return data._frozen is not None


# --- making one ------------------------------------------------------------------------------


def test_parts_by_type() -> None:
    data = DataProto.from_single_dict({"x": torch.ones(3, 2), "t": np.array(["a", "b", "c"])})
    assert isinstance(data.batch, TensorDict) and len(data) == 3
    assert data.non_tensor_batch["t"].dtype == object
    assert data.meta_info == {}
    with pytest.raises(ValueError, match="'x' is a list; it must be a tensor or a numpy array"):
        DataProto.from_single_dict({"x": [1, 2]})


def test_what_is_refused() -> None:
    with pytest.raises(AssertionError, match="tensors must not be empty"):
        DataProto.from_dict({})
    with pytest.raises(AssertionError, match=r"'a' has \(2,\), 'b' has \(3,\)"):
        DataProto.from_dict({"a": torch.ones(2), "b": torch.ones(3)})
    with pytest.raises(AssertionError, match="has 2 rows, the batch 3"):
        DataProto.from_dict({"a": torch.ones(3)}, {"c": [1, 2]})
    with pytest.raises(AssertionError, match="dtype=object"):
        DataProto(TensorDict({"a": torch.ones(2)}, 2), {"c": np.ones(2)})
    with pytest.raises(AssertionError, match="in batch and in non_tensor_batch: 'a'"):
        DataProto(TensorDict({"a": torch.ones(2)}, 2), {"a": objects(1, 2)})
    with pytest.raises(AssertionError, match="one batch dimension"):
        DataProto(TensorDict({"a": torch.ones(2, 3)}, (2, 3)))
    with pytest.raises(AssertionError, match="needs a batch beside it"):
        DataProto(non_tensor_batch={"c": objects(1)})


def test_meta_alone() -> None:
    data = DataProto(meta_info={"step": 3})
    assert len(data) == 0 and data.batch is None and data.non_tensor_batch == {}
    parts = data.chunk(3)
    assert [part.meta_info for part in parts] == [{"step": 3}] * 3


# --- rows ------------------------------------------------------------------------------------


def test_indices_and_slices() -> None:
    data = rows(step=1)
    one = data[2]
    assert isinstance(one, DataProto) and len(one) == 1
    assert one.batch["b"].tolist() == [2.0] and one.non_tensor_batch["c"][0] == {"id": 2}
    assert data[-1].batch["b"].tolist() == [4.0]
    assert data[np.int64(1)].batch["b"].tolist() == [1.0]
    assert data[1:4].batch["b"].tolist() == [1, 2, 3] and data[::2].batch["b"].tolist() == [0, 2, 4]
    assert data[[4, 0]].batch["b"].tolist() == [4, 0]
    assert data[torch.tensor([3])].batch["b"].tolist() == [3]
    assert data[data.batch["b"] > 2].batch["b"].tolist() == [3, 4]
    assert len(data[[]]) == 0
    assert data[1:4].meta_info == {"step": 1}
    assert data["b"] is data.batch["b"] and data["c"] is data.non_tensor_batch["c"]
    with pytest.raises(KeyError, match="no column 'z'"):
        data["z"]
    with pytest.raises(TypeError, match=r"no item 1\.5"):
        data[1.5]


def test_columns_by_item() -> None:
    data = rows()
    data["d"] = torch.ones(5)
    data["c"] = torch.zeros(5)  # from an array to a tensor
    data["b"] = objects(*"abcde")
    assert set(data.batch.keys()) == {"a", "c", "d"} and list(data.non_tensor_batch) == ["b"]
    with pytest.raises(TypeError, match="'x' is a list"):
        data["x"] = [1]


@pytest.mark.parametrize(
    ("n", "parts", "sizes"), [(5, 2, [3, 2]), (7, 3, [3, 2, 2]), (4, 4, [1] * 4)]
)
def test_chunks_are_even(n: int, parts: int, sizes: list[int]) -> None:
    data = rows(n)
    found = data.chunk(parts)
    assert [len(part) for part in found] == sizes
    assert torch.equal(torch.cat([part.batch["a"] for part in found]), data.batch["a"])
    found[0].batch["a"][:] = -1  # a copy
    assert data.batch["a"].min() == 0


def test_too_few_rows_to_cut() -> None:
    with pytest.raises(AssertionError, match="2 rows cannot be cut into 3 parts"):
        rows(2).chunk(3)


def test_order_and_copies() -> None:
    data = rows(3)
    assert data.repeat(2).batch["b"].tolist() == [0, 0, 1, 1, 2, 2]
    assert data.repeat(2, interleave=False).batch["b"].tolist() == [0, 1, 2, 0, 1, 2]
    assert [c["id"] for c in data.repeat(2).non_tensor_batch["c"]] == [0, 0, 1, 1, 2, 2]
    data.reorder(torch.tensor([2, 0, 1]))
    assert data.batch["b"].tolist() == [2, 0, 1]
    assert [c["id"] for c in data.non_tensor_batch["c"]] == [2, 0, 1]
    data.reorder(torch.tensor(1))
    assert data.batch["b"].tolist() == [0]


def test_groups() -> None:
    data = DataProto(
        TensorDict({"g": torch.tensor([0, 0, 1, 1])}, 4), {"k": objects("A", "B", "A", "A")}
    )
    assert {key: len(group) for key, group in data.group_by("k").items()} == {"A": 3, "B": 1}
    both = data.group_by(["g", "k"])
    assert {key: len(group) for key, group in both.items()} == {"0|A": 1, "0|B": 1, "1|A": 2}
    with pytest.raises(KeyError, match="Grouping key 'nope'"):
        data.group_by("nope")
    with pytest.raises(AssertionError):
        data.group_by([])


# --- columns ---------------------------------------------------------------------------------


def test_select_pop_rename() -> None:
    data = rows(step=1, seed=2)
    part = data.select(["a"], [], ["step"])
    assert list(part.batch.keys()) == ["a"] and not part.non_tensor_batch
    assert part.meta_info == {"step": 1}
    assert set(data.select().batch.keys()) == {"a", "b"}
    taken = data.pop("b", ["c"], ["seed"])
    assert list(taken.batch.keys()) == ["b"] and list(taken.non_tensor_batch) == ["c"]
    assert taken.meta_info == {"seed": 2} and data.meta_info == {"step": 1}
    assert list(data.batch.keys()) == ["a"] and not data.non_tensor_batch
    assert data.rename("a", "alpha") is data and list(data.batch.keys()) == ["alpha"]
    with pytest.raises(ValueError, match="1 old_keys and 2 new_keys"):
        data.rename("alpha", ["x", "y"])
    with pytest.raises(AssertionError, match="there is no 'zz' to pop"):
        data.pop(["zz"])


def test_union() -> None:
    data = rows(step=1)
    other = DataProto.from_dict(
        {"b": data.batch["b"].clone(), "n": torch.ones(5)}, meta_info={"t": 2}
    )
    assert data.union(other) is data
    assert set(data.batch.keys()) == {"a", "b", "n"} and data.meta_info == {"step": 1, "t": 2}
    empty = DataProto(meta_info={})
    empty.union(other)
    assert len(empty) == 5
    with pytest.raises(AssertionError, match="tensor 'b' is in both, and not the same"):
        data.union(DataProto.from_dict({"b": torch.ones(5)}))
    with pytest.raises(AssertionError, match="a union is of the same rows"):
        data.union(rows(2))
    with pytest.raises(AssertionError, match="meta 'step' is in both, and not the same"):
        data.union(DataProto(meta_info={"step": 7}))


def test_union_of_equal_values_of_several_types() -> None:
    def data(**meta: Any) -> DataProto:
        return DataProto.from_dict({next(iter(meta)): torch.ones(3)}, {"o": [meta["n"]] * 3}, meta)

    both = data(a=1, n=1).union(data(b=2, n=1.0))
    assert both.meta_info == {"a": 1, "b": 2, "n": 1}
    data(a=1, n=np.float64(1.5)).union(data(b=1, n=1.5))
    with pytest.raises(AssertionError, match="column 'o' is in both, and not the same"):
        data(a=1, n=1).union(data(b=1, n=2))


def test_which_of_two_equal_values_a_union_has() -> None:
    """Its own tensor, as views of it may be held elsewhere; the other's array and meta."""
    mine, other = rows(2, k=[1]), rows(2, k=[1])
    tensor, array, meta = mine.batch["a"], other.non_tensor_batch["c"], other.meta_info["k"]
    mine.union(other)
    assert mine.batch["a"] is tensor
    assert mine.non_tensor_batch["c"] is array and mine.meta_info["k"] is meta


def test_clone_shares_nothing() -> None:
    for other in (rows(step=[1]).clone(), copy.deepcopy(rows(step=[1]))):
        data = rows(step=[1])
        other.batch["a"][0] += 100
        other.meta_info["step"].append(2)
        other.meta_info["new"] = 1
        assert data.meta_info == {"step": [1]} and data.batch["a"][0].tolist() == [0, 1]


def test_to_moves_meta_too() -> None:
    data = rows(3, deep={"t": [torch.ones(2), 1]}).to("meta")
    assert data.batch["a"].device.type == "meta"
    assert data.meta_info["deep"]["t"][0].device.type == "meta"
    shared = rows(3, deep={"t": [torch.ones(2)]})
    part = shared[:1]
    shared.to("meta")  # in place, so for all who have that meta
    assert part.meta_info["deep"]["t"][0].device.type == "meta"
    came = sent(rows(3, step=1)).to("cpu")
    assert torch.equal(came.batch["a"], rows(3).batch["a"]) and came.meta_info == {"step": 1}
    assert came.non_tensor_batch["c"][2] == {"id": 2} and set(came.batch.keys()) == {"a", "b"}
    assert sent(rows(3)).to("meta").batch["b"].device.type == "meta"


def test_iterator() -> None:
    data = rows(4, step=1)
    found = list(data.make_iterator(2, epochs=2))
    assert [one.batch["b"].tolist() for one in found] == [[0, 1], [2, 3]] * 2
    assert all(one.meta_info is data.meta_info for one in found)
    with pytest.raises(AssertionError):
        data.make_iterator(3, 1)


# --- putting together --------------------------------------------------------------------------


def metrics(n: int, **values: Any) -> DataProto:
    return DataProto.from_single_dict({"x": torch.ones(n)}, {"metrics": values, "seed": n})


def test_concat() -> None:
    several = [
        metrics(3, acc=0.8, loss=np.array([0.1, 0.2])),
        metrics(1, loss=np.array([0.3]), name="x"),
        metrics(2, acc=0.9, shape=torch.ones(2)),
    ]
    one = DataProto.concat(several)
    assert len(one) == 6 and one.meta_info["seed"] == 3
    assert one.meta_info["metrics"] == {
        "acc": [0.8, 0.9],
        "loss": [0.1, 0.2, 0.3],
        "name": ["x"],
        "shape": [1.0, 1.0],
    }
    assert DataProto.concat(several[:1]) is several[0]
    by_seed = DataProto.concat(several, global_keys={"seed"})
    assert by_seed.meta_info["seed"] == [3, 1, 2]
    assert by_seed.meta_info["metrics"] is several[0].meta_info["metrics"]
    assert several[0].meta_info["metrics"]["acc"] == 0.8  # as it was


def test_concat_of_what_does_not_fit() -> None:
    with pytest.raises(KeyError, match="must have the same keys"):
        DataProto.concat([rows(1), metrics(1)])
    ragged = DataProto.concat([metrics(1, v=np.ones((2, 2))), metrics(1, v=np.ones((3, 3)))])
    assert [v.shape for v in ragged.meta_info["metrics"]["v"]] == [(2, 2), (3, 3)]
    with pytest.raises(TypeError, match="cannot be merged"):
        DataProto.concat([metrics(1), DataProto(meta_info={"metrics": 3})])


def test_meta_alone_is_joined() -> None:
    several = [DataProto(meta_info={"metrics": {"a": at}}) for at in (1, 1)]
    assert DataProto.concat(several).meta_info == {"metrics": {"a": [1, 1]}}


@pytest.mark.parametrize(
    ("n", "divisor", "pad"), [(7, 4, 1), (8, 4, 0), (1, 4, 3), (3, 8, 5), (0, 4, 0)]
)
def test_padding(n: int, divisor: int, pad: int) -> None:
    data = DataProto.from_dict({"a": torch.arange(n)}, meta_info={"metrics": {"m": 1}})
    padded, size = roll.pad_dataproto_to_divisor(data, divisor)
    assert size == pad and len(padded) == n + pad
    assert padded.batch["a"].tolist() == [at % n for at in range(n + pad)]
    assert padded.meta_info == {"metrics": {"m": 1}}
    assert roll.unpad_dataproto(padded, size).batch["a"].tolist() == list(range(n))


def test_arrays_of_different_shapes() -> None:
    one = roll.custom_np_concatenate([np.ones((1, 8, 4)), np.ones((2, 6, 3))])
    assert one.shape == (3,) and one.dtype == object and one[2].shape == (6, 3)


# --- as it travels -----------------------------------------------------------------------------


def test_it_travels_as_a_batch() -> None:
    data = rows(step=(1, 2))
    back = sent(data)
    assert isinstance(back, DataProto) and len(back) == 5 and back.meta_info == {"step": (1, 2)}
    assert frozen(back)  # nobody has looked yet
    assert torch.equal(back.batch["a"], data.batch["a"]) and not frozen(back)
    assert back.non_tensor_batch["c"][4] == {"id": 4} and back.non_tensor_batch["c"].dtype == object
    assert data.meta_info == {"step": (1, 2)}  # the caller's own stays as it is


def test_rows_without_columns_are_still_rows() -> None:
    data = rows(3, step=1)
    data.pop(["a", "b"], ["c"])
    back = sent(sent(data))
    assert len(back) == 3 and back.meta_info == {"step": 1} and back.non_tensor_batch == {}
    assert len(back.batch) == 3 and not list(back.batch.keys())


def test_it_travels_inside_other_values() -> None:
    back = sent({"list": [rows(2), DataProto(meta_info={"x": 1})], "n": 1})
    assert [len(one) for one in back["list"]] == [2, 0]
    assert back["list"][1].batch is None and back["list"][1].meta_info == {"x": 1}


def test_rows_are_views() -> None:
    back = sent(rows())
    assert isinstance(back.batch, TensorDict)
    back.batch["a"][0, 0] = 9  # writing is legal
    assert back.batch["a"][0, 0] == 9


def test_what_was_not_looked_at_goes_as_it_came() -> None:
    back = sent(rows(step=1))
    blocks = [piece.block for part in back._frozen._live() for piece in part.pieces]
    again = back.__muster_batch__()
    assert [piece.block for part in again._live() for piece in part.pieces] == blocks
    assert sent(back).batch["b"].tolist() == [0, 1, 2, 3, 4]


def test_joined_as_the_head_joins() -> None:
    """Metas of several ranks merge as concat's do, also where they are equal."""
    made = []
    data = metrics(2, acc=0.5)
    for _ in range(3):
        made.append(data.__muster_batch__())
    one = sent(Batch.concat(made))
    assert isinstance(one, DataProto) and len(one) == 6
    assert one.meta_info == {"metrics": {"acc": [0.5, 0.5, 0.5]}, "seed": 2}


def joined(*several: dict[str, Any]) -> Any:
    """DataProtos of the same columns, as the head joins the results of ranks."""
    return sent(Batch.concat([DataProto.from_dict(one).__muster_batch__() for one in several]))


def test_ranks_that_give_tensors_of_several_types() -> None:
    whole, half = torch.arange(4).reshape(2, 2), torch.tensor([[0.5, 1.5]])
    one = joined({"x": whole, "y": whole}, {"x": half, "y": whole[:1]})
    assert one.batch["x"].dtype == torch.float32 and one.batch["y"].dtype == torch.int64
    assert one.batch["x"].tolist() == [[0, 1], [2, 3], [0.5, 1.5]]
    moved = joined({"x": whole}, {"x": half}).to("cpu")
    assert moved.batch["x"].tolist() == [[0, 1], [2, 3], [0.5, 1.5]]
    wide = joined({"x": whole}, {"x": torch.ones(1, 3)})
    for _ in range(2):  # and it is the same when asked again
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            len(wide.batch)


def test_pickle_and_copy() -> None:
    data = rows(step=1)
    for back in (
        pickle.loads(pickle.dumps(data)),
        copy.copy(data),
        pickle.loads(pickle.dumps(sent(data))),
    ):
        assert torch.equal(back.batch["a"], data.batch["a"]) and back.meta_info == {"step": 1}


def test_types_of_tensors_stay() -> None:
    data = DataProto.from_dict(
        {
            "half": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
            "flag": torch.tensor([True, False]),
            "deep": torch.zeros(2, 3, 4, dtype=torch.int32),
            "grad": torch.ones(2, requires_grad=True),
        }
    )
    back = sent(data)
    assert {n: t.dtype for n, t in back.batch.items()} == {
        n: t.dtype for n, t in data.batch.items()
    }
    assert back.batch["deep"].shape == (2, 3, 4) and back.batch["half"].tolist() == [1.5, 2.5]


def test_waiting_for_refs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get(refs: list[Any], timeout: float | None = None) -> list[Any]:
        asked.append(timeout)
        return refs

    monkeypatch.setattr("muster.compat.ray.get", get)
    monkeypatch.setenv("roll_RPC_TIMEOUT", "17")
    wrapped = [roll.ObjectRefWrap(metrics(1), collected=at != 1) for at in range(3)]
    assert len(DataProto.materialize_concat(wrapped)) == 2
    assert len(DataProto.materialize_concat([metrics(1)], timeout=None)) == 1
    assert len(DataProto.materialize_concat(metrics(4), timeout=23)) == 4
    assert asked == [17, None, 23]
    assert proto.rpc_timeout() == 17


def test_tensors_are_no_lists_of_metrics() -> None:
    found = roll.reduce_metrics({"t": torch.ones(2), "l": [1, 3]})
    assert torch.equal(found["t"], torch.ones(2)) and found["l"] == 2.0
