"""Cases for `roll_cases.py`: DataProtos and metrics, without a cluster."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import torch

from roll_case_roles import (
    DataProto,
    case,
    custom_np_concatenate,
    pad_dataproto_to_divisor,
    reduce_metrics,
    told,
    unpad_dataproto,
)


def data(rows: int = 4, **meta: Any) -> Any:
    return DataProto.from_dict(
        tensors={"x": torch.arange(rows * 2).reshape(rows, 2)},
        non_tensors={"n": [f"r{at}" for at in range(rows)]},
        meta_info=meta,
    )


def objects(*items: Any) -> Any:
    return custom_np_concatenate([items])


def of(x: list[Any], meta: Any = None) -> Any:
    return DataProto.from_dict({"x": torch.tensor(x)}, meta_info=meta)


@case
def made_of_a_dict() -> Any:
    given = {"n": ["a", "b"]}
    made = DataProto.from_dict({"x": torch.zeros(2)}, given, {"k": 1})
    return made, len(made)


@case
def made_of_nothing() -> Any:
    empty = DataProto()
    return len(empty), empty.meta_info, told(lambda: DataProto.from_dict({}))


@case
def made_of_a_single_dict() -> Any:
    arrays = np.array([{"a": 1}, None], dtype=object)
    made = DataProto.from_single_dict({"x": torch.ones(2), "o": arrays}, {"m": 1})
    return made, told(lambda: DataProto.from_single_dict({"x": [1, 2]}))


@case
def made_of_different_lengths() -> Any:
    return [
        told(lambda: DataProto.from_dict({"x": torch.ones(2), "y": torch.ones(3)})),
        told(lambda: DataProto.from_dict({"x": torch.ones(2)}, {"n": [1, 2, 3]})),
        told(lambda: DataProto.from_dict({"x": torch.ones(2)}, {"x": [1, 2]})),
        told(lambda: DataProto.from_dict({"x": torch.ones(2, 2)}, {"n": [1, 2]}, None, 2)),
    ]


@case
def arrays_that_are_no_objects() -> Any:
    batch = data().batch.copy()
    return told(
        lambda: DataProto(batch=getattr(batch, "_batch", batch), non_tensor_batch={"f": np.ones(4)})
    )


@case
def arrays_without_tensors() -> Any:
    return told(lambda: DataProto(non_tensor_batch={"n": np.array(["a"], dtype=object)}))


@case
def rows_by_number() -> Any:
    d = data(4, k=1)
    return d[0], d[np.int64(3)], d[-2], told(lambda: d[9])


@case
def the_last_row() -> Any:
    return data(4)[-1]


@case
def rows_by_slice() -> Any:
    d = data(5)
    return d[1:3], d[::2], d[:-1], d.slice(3, 5), d[4:9]


@case
def rows_by_lists() -> Any:
    d = data(4)
    mask = np.array([True, False, False, True])
    return d[[2, 0]], d[torch.tensor([1, 1])], d[np.array([3])], d[mask], d[mask.tolist()]


@case
def no_rows_by_list() -> Any:
    return len(data(4)[[]])


@case
def columns_by_name() -> Any:
    d = data(2)
    return d["x"], d["n"], told(lambda: d["z"]), told(lambda: d[1.5])


@case
def columns_are_set() -> Any:
    d = data(2)
    d["y"] = torch.ones(2)
    d["n"] = torch.zeros(2)
    d["x"] = np.array(["p", "q"], dtype=object)
    return d, told(lambda: d.update({"z": [1, 2]})), told(lambda: d.__setitem__("z", 1))


@case
def columns_are_deleted() -> Any:
    d = data(2)
    del d["x"], d["n"]
    return (
        sorted(d.batch.keys()),
        sorted(d.non_tensor_batch.keys()),
        told(lambda: d.__delitem__("x")),
    )


@case
def columns_that_have_no_name() -> Any:
    d = data(2)
    return told(lambda: d.__setitem__(0, torch.ones(2))), told(lambda: d.__delitem__(0))


@case
def a_column_of_another_length() -> Any:
    d = data(2)
    return told(lambda: d.batch.__setitem__("y", torch.ones(3)))


@case
def a_batch_is_replaced() -> Any:
    d, other = data(2), of([7, 8])
    d.batch = other.batch
    return d


@case
def parts_are_replaced() -> Any:
    d, other = data(2), DataProto.from_dict({"y": torch.ones(2)}, {"m": ["p", "q"]})
    d.non_tensor_batch = other.non_tensor_batch
    d.non_tensor_batch["more"] = objects("s", "t")
    d.batch = other.batch
    d.batch["z"] = torch.zeros(2)
    return d, sorted(other.batch.keys()), sorted(other.non_tensor_batch.keys())


@case
def parts_that_share_a_name_are_replaced() -> Any:
    d = data(2)
    d.non_tensor_batch = {"x": objects(1, 2), "k": objects(3, 4)}
    other = DataProto.from_dict({"k": torch.ones(2), "y": torch.ones(2)})
    d.batch = other.batch
    return sorted(d.batch.keys()), sorted(d.non_tensor_batch.keys())


@case
def parts_of_other_lengths() -> Any:
    d = data(2)
    return [
        told(lambda: setattr(d, "batch", data(3).batch)),
        told(lambda: setattr(d, "non_tensor_batch", {"k": objects(1)})),
        told(lambda: setattr(d, "non_tensor_batch", {"k": np.ones(2)})),
    ]


@case
def batches_are_like_dicts() -> Any:
    d = data(2)
    batch, arrays = d.batch, d.non_tensor_batch
    batch.update({"y": torch.ones(2)})
    found: list[Any] = ["x" in batch, "z" in batch, "n" in arrays, "z" in arrays]
    found += [sorted({**batch}), sorted({**arrays}), batch.get("z"), arrays.get("z")]
    found += [batch.pop("z", 5), arrays.pop("z", 5), batch.pop("y"), tuple(batch.shape)]
    return found, told(lambda: batch.pop("z")), told(lambda: batch["z"]), d


@case
def batches_read() -> Any:
    batch = data(3).batch
    return (
        sorted(batch.keys()),
        "x" in batch.keys(),  # noqa: SIM118  (of a TensorDict)
        tuple(batch.batch_size),
        batch["x"],
        batch.get("z", None),
        [name for name, _ in batch.items()],
    )


@case
def the_meta_is_shared() -> Any:
    d = data(4, k=1)
    part = d[:2]
    part.meta_info["new"] = 2
    d.chunk(2)[0].meta_info["more"] = 3
    return d.meta_info


@case
def a_slice_shares_its_rows() -> Any:
    d = data(4)
    d[:2].batch["x"][0, 0] = 99
    d.chunk(2)[0].batch["x"][0, 1] = 98  # a copy
    return d.batch["x"][0]


@case
def chunks() -> Any:
    return [[part.batch["x"][:, 0].tolist() for part in data(n).chunk(3)] for n in (3, 4, 5, 8)]


@case
def chunks_of_too_few() -> Any:
    return told(lambda: data(2).chunk(3))


@case
def chunks_of_meta_alone() -> Any:
    return DataProto(meta_info={"k": 1}).chunk(2)


@case
def chunks_of_no_rows() -> Any:
    return told(lambda: [len(part) for part in data(4)[:0].chunk(2)])


@case
def concat() -> Any:
    first, second = data(2, k=1, metrics={"a": 1}), data(1, k=2, metrics={"a": 2, "b": 3})
    return DataProto.concat([first, second]), first.meta_info


@case
def concat_of_one() -> Any:
    d = data(2)
    return DataProto.concat([d]) is d


@case
def concat_of_none() -> Any:
    return told(lambda: DataProto.concat([]))


@case
def concat_with_meta_alone() -> Any:
    meta = DataProto(meta_info={"metrics": {"a": 1.5}})
    return DataProto.concat([meta, meta]), len(DataProto.concat([meta, of([1])]))


@case
def concat_of_different_columns() -> Any:
    return [
        told(lambda: DataProto.concat([of([1]), DataProto.from_dict({"y": torch.ones(1)})])),
        told(lambda: DataProto.concat([data(1), of([[1, 2]])])),
    ]


@case
def concat_of_global_keys() -> Any:
    metas = [{"a": {"x": 1, "y": [1]}, "b": 5, "c": 1}, {"a": {"x": 2, "y": [2, 3]}, "b": None}]
    parts = [of([1], metas[0]), of([2], metas[1])]
    return [
        DataProto.concat(parts, global_keys={"a", "b"}).meta_info,
        DataProto.concat(parts, global_keys=set()).meta_info,
        DataProto.concat(parts[::-1], global_keys={"c", "nowhere"}).meta_info,
    ]


@case
def concat_of_metrics_of_every_kind() -> Any:
    values: list[Any] = [1, 2.5, "s", [1, 2], np.ones(2), np.float32(1), None, {"d": 1}, (3,), True]

    def twice(value: Any) -> Any:
        one = of([1], {"metrics": {"m": value}})
        return DataProto.concat([one, one]).meta_info["metrics"]["m"]

    return [told(partial(twice, value)) for value in values]


@case
def concat_of_a_dict_and_no_dict() -> Any:
    parts = [of([1], {"metrics": {"a": 1}}), of([1], {"metrics": 5})]
    return told(lambda: DataProto.concat(parts))


@case
def union() -> Any:
    d = data(2, k=1)
    other = DataProto.from_dict({"y": torch.ones(2)}, {"m": ["p", "q"]}, {"j": 2})
    same = d.union(other) is d
    return same, d


@case
def union_of_the_same() -> Any:
    return data(2, k={"a": [1]}).union(data(2, k={"a": [1]}))


@case
def union_of_what_differs() -> Any:
    other = data(2)
    other.batch["x"][0] = 7
    names = data(2)
    names.non_tensor_batch["n"][0] = "other"
    return [
        told(lambda: data(2).union(other)),
        told(lambda: data(2).union(names)),
        told(lambda: data(2, k=1).union(data(2, k=2))),
        told(lambda: data(2).union(data(3))),
    ]


@case
def union_into_nothing() -> Any:
    return DataProto(meta_info={"k": 1}).union(of([1, 2], {"j": 2}))


@case
def union_of_metas_with_tensors() -> Any:
    first, second = of([1], {"t": torch.ones(2)}), of([1], {"t": torch.ones(2)})
    return told(lambda: sorted(first.union(second).meta_info))


@case
def select() -> Any:
    d = DataProto.from_dict(
        {"x": torch.ones(1), "y": torch.ones(1)}, {"n": ["a"], "m": ["b"]}, {"k": 1, "j": 2}
    )
    return [
        d.select(["x"], ["n"], ["k"]),
        d.select(batch_keys=["y"], non_tensor_batch_keys=[]),
        told(lambda: d.select(["z"], [])),
        d,
    ]


@case
def select_of_one_part_alone() -> Any:
    d = data(1)
    return told(lambda: d.select(batch_keys=["x"])), told(lambda: d.select())


@case
def select_of_copies() -> Any:
    d = data(1)
    return told(lambda: d.select(["x"], ["n"], deepcopy=True))


@case
def pop() -> Any:
    d = data(2, k=1, j=2)
    return d.pop(["x"], ["n"], ["k"]), d


@case
def pop_by_text() -> Any:
    d = data(2)
    return d.pop(batch_keys="x"), len(d)


@case
def pop_of_what_is_not_there() -> Any:
    return [
        told(lambda: data(1).pop(["z"])),
        told(lambda: data(1).pop(["x"], ["z"])),
        told(lambda: data(1).pop(["x"], meta_info_keys=["z"])),
        told(lambda: data(1).pop()),
        told(lambda: data(1).pop(("x",))),
    ]


@case
def rename() -> Any:
    d = data(1)
    same = d.rename("x", "y") is d
    return same, d, told(lambda: d.rename(["y"], ["a", "b"])), told(lambda: d.rename("q", "r"))


@case
def rename_to_a_name_of_the_other_part() -> Any:
    return told(lambda: data(1).rename("x", "n"))


@case
def reorder() -> Any:
    d = data(3)
    return d.reorder(torch.tensor([2, 0, 1])), d


@case
def repeat() -> Any:
    d = data(2, k=1)
    return d.repeat(2), d.repeat(repeat_times=3, interleave=False), len(d)


@case
def repeat_of_meta_alone() -> Any:
    return told(lambda: len(DataProto(meta_info={"k": 1}).repeat(3)))


@case
def group_by() -> Any:
    d = DataProto.from_dict(
        {"g": torch.tensor([0, 1, 0]), "v": torch.tensor([[1, 2], [3, 4], [1, 2]])},
        {"n": ["a", "b", "a"]},
    )
    return d.group_by("n"), sorted(d.group_by(["g", "n"])), sorted(d.group_by("v"))


@case
def group_by_what_is_not_there() -> Any:
    return [
        told(lambda: data(1).group_by("z")),
        told(lambda: data(1).group_by([])),
        told(lambda: data(1).group_by(("n",))),
    ]


@case
def clones() -> Any:
    d = data(1, k=[1])
    other = d.clone()
    other.batch["x"][0] = 5
    other.non_tensor_batch["n"][0] = "z"
    other.meta_info["k"].append(2)
    return d, other


@case
def copies_by_copy() -> Any:
    d = data(1, k=[1])
    deep, shallow = copy.deepcopy(d), copy.copy(d)
    deep.meta_info["k"].append(2)
    shallow.meta_info["k"].append(3)
    return d.meta_info, deep.meta_info, shallow.batch["x"]


@case
def pickled() -> Any:
    d = data(2, k={"a": (1, 2)}, f=len)
    back = pickle.loads(pickle.dumps(d))
    return type(back) is DataProto, back


@case
def to_a_device() -> Any:
    d = of([1], {"t": torch.ones(1), "deep": [{"u": torch.ones(1)}]})
    return d.to("cpu") is d, d


@case
def padded() -> Any:
    some = [pad_dataproto_to_divisor(data(n, k=1), 4) for n in (1, 3, 4, 5)]
    return [(made["n"].tolist(), pad) for made, pad in some]


@case
def padded_with_metrics() -> Any:
    return pad_dataproto_to_divisor(data(1, metrics={"a": 1}), 2)[0].meta_info


@case
def padded_of_no_rows() -> Any:
    made, pad = pad_dataproto_to_divisor(data(4)[:0], 4)
    return len(made), pad


@case
def padded_of_what_is_none() -> Any:
    return told(lambda: pad_dataproto_to_divisor([1], 2))


@case
def unpadded() -> Any:
    d = data(4)
    return unpad_dataproto(d, 0) is d, unpad_dataproto(d, 1), len(unpad_dataproto(d, 9))


@case
def mini_batches() -> Any:
    d = data(4, k=1)
    plain = list(d.make_iterator(2, epochs=2))
    seeded = [
        [part["n"].tolist() for part in d.make_iterator(2, 1, seed=3, dataloader_kwargs=dict(s))]
        for s in ({"shuffle": True}, {"shuffle": True}, {"shuffle": False})
    ]
    return plain, seeded, told(lambda: list(d.make_iterator(3, 1)))


@case
def arrays_of_objects_put_together() -> Any:
    parts = [np.array(["a", None], dtype=object), [1, (2,)]]
    return custom_np_concatenate(parts), custom_np_concatenate([])


@case
def arrays_of_one_shape_put_together() -> Any:
    return told(lambda: len(custom_np_concatenate([np.ones((1, 2)), np.ones((1, 2))])))


@case
def without_a_transfer_backend() -> Any:
    d = data(1)
    return DataProto.to_remote(d) is d, d.prefetch(), DataProto.drop(d)


@case
def metrics_reduced() -> Any:
    values: dict[str, Any] = {
        "plain": [1, 3],
        "a_sum": [1, 2],
        "b@max": [1, 5],
        "c@p50": [1, 2, 9],
        "d_std": [2, 2],
        "number": 4,
        "array": np.array([1.0, 2.0]),
        "tensor": torch.ones(1),
        "empty": [],
        "np": np.float32(2),
        "sum": [1, 2],
        "a@b_max@min": [3, 4],
    }
    same = reduce_metrics(values)
    return same is values, values, reduce_metrics({"x": [1, 2]}, np.max)


@case
def metrics_that_cannot_be_reduced() -> Any:
    return [
        told(lambda: reduce_metrics({"a@median": [1]})),
        told(lambda: reduce_metrics({"a": "text"})),
        told(lambda: reduce_metrics({"a": None})),
        told(lambda: reduce_metrics({"a": ["x"]})),
    ]
