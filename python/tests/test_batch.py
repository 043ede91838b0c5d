"""What a user does with batches, and what is refused."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from schemas import check, same

import muster
from muster import Batch, _objects, _sources, _store
from muster._errors import EncodingError, ProtocolError, ReleasedError


def sent(batch: Batch, pickle: str = "on") -> Batch:
    bufs: list[Any] = []
    payload = batch._encode(bufs, pickle)
    made: Batch = Batch._decode(payload, [memoryview(bytearray(buf)) for buf in bufs])
    return made


@pytest.fixture
def batch() -> Batch:
    return Batch(
        {
            "ids": np.arange(12).reshape(6, 2),
            "prompt": ["a", "b", "a", "c", "b", "a"],
            "reply": [np.arange(n) for n in (3, 0, 1, 5, 2, 4)],
            "score": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0],
        },
        meta={"step": 3},
    )


# --- making ----------------------------------------------------------------------------


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match=r"'a' has 2, 'b' has 3"):
        Batch({"a": [1, 2], "b": np.zeros(3)})


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (np.array(3), ValueError, "column 'x' is a 0-d array"),
        ("text", TypeError, "column 'x' is a str"),
        ({"a": 1}, TypeError, "no order of rows"),
        (5, TypeError, "column 'x' is a int"),
        (np.ma.array([1, 2]), TypeError, "more than its numbers"),
        (np.zeros(2, [("a", object)]), TypeError, "records with objects"),
    ],
)
def test_what_is_no_column(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Batch({"x": value})


@pytest.mark.parametrize("name", [1, None, "", "a\0b"])
def test_what_is_no_name(name: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="the name of a column"):
        Batch({name: [1]})


def test_columns_of_other_kinds() -> None:
    class Lazy:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(3)

    made = Batch({"t": (1, 2, 3), "r": range(3), "a": Lazy()})
    check(made, {"t": [1, 2, 3], "r": [0, 1, 2], "a": np.arange(3)})


def test_a_list_is_kept_as_it_was() -> None:
    given = [1, 2]
    made = Batch({"x": given})
    given.append(3)
    assert sent(made)["x"] == [1, 2]


def test_without_columns() -> None:
    empty = Batch()
    assert len(empty) == 0 and empty.columns == [] and empty.meta == {} and list(empty) == []
    back = sent(Batch(meta={"a": 1}))
    assert back.meta == {"a": 1} and back.columns == []
    assert len(Batch({"x": []})) == 0
    assert [len(part) for part in back.chunk(3)] == [0, 0, 0]


# --- reading ---------------------------------------------------------------------------


def test_looks(batch: Batch) -> None:
    for one in (batch, sent(batch)):
        assert len(one) == 6 and one.columns == ["ids", "prompt", "reply", "score"]
        assert "ids" in one and "x" not in one
        assert repr(one) == (
            "Batch(6 rows: ids int64[2], prompt text, reply int64[*], score float64; meta: step)"
        )
        assert one.nbytes == 12 * 8 + (6 * 8 + 6) + (6 * 8 + 15 * 8) + 6 * 8
        row = one[-1]
        assert row["prompt"] == "a" and row["score"] == 3.0 and row["ids"].tolist() == [10, 11]
        assert [r["prompt"] for r in one] == one["prompt"]
        with pytest.raises(KeyError, match="no column 'x': this batch has ids, prompt"):
            one["x"]
        with pytest.raises(IndexError, match="row 6 of a batch of 6"):
            one[6]
    assert repr(Batch({"x": [1]})) == "Batch(1 row: x int64)"
    odd = Batch({"x": [1, None], "y": [["a"], []], "z": [None, 2.5]})
    assert repr(odd) == "Batch(2 rows: x object, y object, z object)" == repr(sent(odd))


def test_reading_is_without_copies(batch: Batch) -> None:
    array = np.arange(4)
    assert Batch({"x": array})["x"] is array
    back = sent(batch)
    assert np.shares_memory(back["ids"], back[2:4]["ids"])
    assert np.shares_memory(back["reply"][0], back[:2]["reply"][0])
    assert back["ids"] is back["ids"] and back["reply"] is back["reply"]
    joined = Batch.concat([back[:2], back[2:5], back[5:]])
    assert np.shares_memory(joined["ids"], back["ids"])
    assert not np.shares_memory(back[::2]["ids"], back["ids"])
    for name in ("ids", "score"):
        assert same(back[::-1][name], batch[::-1][name])


def test_writes_stay_here(batch: Batch) -> None:
    bufs: list[Any] = []
    payload = batch._encode(bufs)
    one, other = (Batch._decode(payload, [bytes(buf) for buf in bufs]) for _ in range(2))
    one["ids"][:] = -1
    assert other["ids"].max() == 11 and batch["ids"].max() == 11


def test_rows_by_everything(batch: Batch) -> None:
    order = [5, 0, 0, -1]
    for key in (order, np.array(order), np.array(order, np.int8), tuple(order)):
        assert batch[key]["prompt"] == ["a", "a", "a", "a"]
    assert batch[[True, False] * 3]["score"] == [0.5, 1.5, 2.5]
    assert len(batch[[]]) == 0 and batch[[]]["ids"].shape == (0, 2)
    assert len(batch[4:2]) == 0 and len(batch[10:]) == 0
    with pytest.raises(IndexError, match="row 6 of a batch of 6"):
        batch[[0, 6]]
    with pytest.raises(IndexError, match="row -7"):
        batch[[-7]]
    with pytest.raises(IndexError, match="a mask of 2 for 6 rows"):
        batch[[True, False]]
    for wrong in ([0.5], [[1]], None):
        with pytest.raises(TypeError, match="rows of a batch are chosen by"):
            batch[wrong]  # type: ignore[index]


def test_repeat_chunk_split(batch: Batch) -> None:
    assert batch.repeat(2)["score"][:4] == [0.5, 0.5, 1.0, 1.0]
    assert [len(part) for part in batch.chunk(4)] == [2, 2, 1, 1]
    assert [len(part) for part in batch.chunk(8)] == [1] * 6 + [0] * 2
    assert [len(part) for part in batch.split(4)] == [4, 2]
    assert Batch.concat(batch.chunk(5))["prompt"] == batch["prompt"]
    with pytest.raises(ValueError, match="cannot be cut into 0 parts"):
        batch.chunk(0)
    with pytest.raises(ValueError, match="cannot be split"):
        batch.split(0)


# --- columns ---------------------------------------------------------------------------


def test_select_drop_rename(batch: Batch) -> None:
    for one in (batch, sent(batch)):
        assert one.select("score", "ids").columns == ["score", "ids"]
        assert one.drop("ids", "reply").columns == ["prompt", "score"]
        renamed = one.rename({"ids": "old_ids", "prompt": "ids"})
        assert renamed.columns == ["old_ids", "ids", "reply", "score"]
        for made in (renamed, sent(renamed), sent(sent(renamed)[1:])):
            assert made["ids"][-1] == "a" and made["old_ids"].shape[1] == 2
        with pytest.raises(KeyError, match="no column 'x'"):
            one.select("x")
        with pytest.raises(ValueError, match="selected twice"):
            one.select("ids", "ids")
        with pytest.raises(ValueError, match="two columns would be called 'ids'"):
            one.rename({"prompt": "ids"})


def test_renamed_and_not_together(batch: Batch) -> None:
    back = sent(batch).select("score", "prompt")
    renamed = Batch({"points": [9.0], "prompt": ["z"]}).rename({"points": "score"})
    for parts in ([back, renamed], [renamed, back]):
        made = sent(Batch.concat(parts))
        assert sorted(made["score"]) == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0]


def test_with_columns(batch: Batch) -> None:
    more = batch.with_columns({"score": np.zeros(6), "new": list("abcdef")})
    assert more.columns == [*batch.columns, "new"] and more["score"].sum() == 0
    assert batch["score"][1] == 1.0
    assert sent(more)["new"] == list("abcdef")
    assert Batch(meta={"a": 1}).with_columns({"x": [1]}).meta == {"a": 1}
    with pytest.raises(ValueError, match="column 'new' has 1 rows, the batch 6"):
        batch.with_columns({"new": [1]})


def test_union(batch: Batch) -> None:
    left, right = batch.select("ids"), batch.drop("ids").with_meta(lr=0.1)
    both = left.union(right)
    assert both.columns == batch.columns and both.meta == {"step": 3, "lr": 0.1}
    assert batch.union(batch.select("ids")).columns == batch.columns  # the very same
    with pytest.raises(ValueError, match="both batches have the columns 'ids'"):
        batch.union(Batch({"ids": np.zeros(6)}))
    with pytest.raises(ValueError, match="6 rows and one of 5"):
        batch.union(batch[1:].rename({"ids": "x"}))


def test_concat_of_what_differs(batch: Batch) -> None:
    with pytest.raises(ValueError, match=r"number 1 lacks \['ids'\]"):
        Batch.concat([batch, batch.drop("ids")])
    with pytest.raises(ValueError, match="no batches"):
        Batch.concat([])
    # No columns and no rows: neutral. No rows: neither here nor there.
    assert len(Batch.concat([Batch(meta={"a": 1}), batch])) == 6
    empty = Batch({"ids": [], "prompt": [], "reply": [], "score": []})
    assert same(Batch.concat([empty, batch])["ids"], batch["ids"])
    mixed = Batch.concat([Batch({"x": [1]}), Batch({"x": ["a", None]})])
    assert mixed["x"] == [1, "a", None] == sent(mixed)["x"]
    wrong = Batch.concat([Batch({"x": np.zeros(1)}), sent(Batch({"x": np.zeros((1, 2))}))])
    with pytest.raises(ValueError, match=r"column 'x' is float64 in some rows and float64\[2\]"):
        wrong["x"]


def test_columns_keep_their_order_in_any_grouping(batch: Batch) -> None:
    other = batch.select("score", "reply", "prompt", "ids").with_columns({"prompt": list("xyzuvw")})
    made = Batch.concat([sent(batch), sent(other)])
    assert made.columns == batch.columns
    assert made["prompt"] == [*batch["prompt"], *"xyzuvw"]
    assert len(made["reply"]) == 12


# --- meta ------------------------------------------------------------------------------


def test_meta_is_carried(batch: Batch) -> None:
    batch.meta["seen"] = np.arange(3)
    for made in (sent(batch), sent(sent(batch)[2:]), batch[1:], batch.select("ids")):
        assert made.meta["step"] == 3 and made.meta["seen"].tolist() == [0, 1, 2]
    part = batch[1:]
    part.meta["mine"] = True
    assert "mine" not in batch.meta


def test_meta_of_several() -> None:
    def part(**meta: Any) -> Batch:
        return Batch({"x": [1]}, meta)

    made = Batch.concat(
        [
            part(step=1, metrics={"loss": 1.0, "a": np.ones(1), "l": [1]}),
            part(step=2, late=True, metrics={"loss": 2.0, "a": np.zeros(2), "l": [2], "b": 5}),
        ]
    )
    for one in (made, sent(made)):
        metrics = one.meta.pop("metrics")
        assert metrics.pop("a").tolist() == [1.0, 0.0, 0.0]
        assert metrics == {"loss": [1.0, 2.0], "l": [1, 2], "b": [5]}
        assert one.meta == {"step": 1, "late": True}
    assert Batch.concat([part(metrics=1), part(metrics=2)]).meta == {"metrics": [1, 2]}
    whole = part(metrics={"loss": 1.0}, step=1).repeat(4)
    assert sent(Batch.concat(whole.chunk(4))).meta == {"metrics": {"loss": 1.0}, "step": 1}
    assert Batch.concat(sent(whole).chunk(4)).meta == {"metrics": {"loss": 1.0}, "step": 1}


def test_meta_that_nobody_looks_at_stays_encoded(batch: Batch) -> None:
    back = sent(batch.with_meta(odd=threading.Event))
    again = sent(back)
    assert back._metas[0].values is None and again._metas[0].values is None
    assert again.meta["odd"] is threading.Event


# --- cutting ---------------------------------------------------------------------------


def test_cuts_are_recorded(batch: Batch) -> None:
    made = batch.balanced("score").grouped("prompt").multiple_of(2)
    cut = sent(made)._cut
    assert cut is not None and cut.multiple == 2
    assert cut.weights is not None and cut.weights.tolist() == batch["score"]
    assert cut.groups is not None and cut.groups.tolist() == [0, 1, 0, 2, 1, 0]
    part = sent(made)[[4, 1]]._cut
    assert part is not None and part.groups is not None and part.weights is not None
    assert part.groups.tolist() == [1, 1] and part.weights.tolist() == [2.5, 1.0]
    by_length = batch.balanced("reply")._cut
    assert by_length is not None and by_length.weights is not None
    assert by_length.weights.tolist() == [3, 0, 1, 5, 2, 4]
    by_hand = batch.balanced([1, 2, 3, 4, 5, 6])._cut
    assert by_hand is not None and by_hand.weights is not None and by_hand.weights[5] == 6
    assert batch._cut is None and batch.multiple_of(1)._cut is None
    joined = Batch.concat([made[:3], made[3:]])._cut
    assert (
        joined is not None
        and joined.groups is not None
        and joined.groups.tolist() == [*(0, 1, 0, 2, 1, 0)]
    )
    assert Batch.concat([made, batch])._cut is None


def test_cuts_that_cannot_be(batch: Batch) -> None:
    with pytest.raises(ValueError, match="negative"):
        batch.balanced([-1, 0, 0, 0, 0, 0])
    with pytest.raises(ValueError, match="NaN"):
        batch.balanced(np.full(6, np.nan))
    with pytest.raises(ValueError, match="2 weights for 6 rows"):
        batch.balanced([1, 2])
    with pytest.raises(TypeError, match="column 'ids' is no number for each row"):
        batch.balanced("ids")
    for k in (0, 1 << 40):
        with pytest.raises(ValueError, match=f"multiples of {k}"):
            batch.multiple_of(k)
    with pytest.raises(ValueError, match="1 groups for 6 rows"):
        batch.grouped([1])
    with pytest.raises(TypeError, match="grouped by numbers, texts and the like"):
        batch.grouped("ids")


def test_weights_by_length() -> None:
    texts = [None, "ab", "c"]
    for column in (texts, np.array(texts, object), [None, np.zeros(2), np.zeros(1)]):
        cut = Batch({"x": column}).balanced("x")._cut
        assert cut is not None and cut.weights is not None and cut.weights.tolist() == [0, 2, 1]


# --- sending ---------------------------------------------------------------------------


class Placed:
    """Stands in for the store: tells what was written to it."""

    def __init__(self) -> None:
        self.whats: list[str] = []
        self.sizes: list[int] = []

    def place(self, size: int, fill: Any, what: str) -> _sources.Inline:
        self.whats.append(what)
        self.sizes.append(size)
        data = bytearray(b"\xee" * size)  # as memory that others had
        fill(np.frombuffer(data, np.uint8))
        return _sources.Inline(data)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Placed:
    store = Placed()
    monkeypatch.setattr(_store, "place", store.place)
    return store


def test_written_once(placed: Placed) -> None:
    array = np.zeros((100, 10))
    batch = Batch({"x": array, "y": list(range(100))})
    first: list[Any] = []
    batch._encode(first)
    assert placed.whats == ["batch of 100 rows: x, y"]
    for other in (batch, batch[10:20], batch.select("y"), batch.repeat(3), batch.balanced("y")):
        bufs: list[Any] = []
        other._encode(bufs)
        assert bufs == first
    assert len(placed.whats) == 1
    array[:] = 1
    assert batch["x"].max() == 0  # frozen


def test_what_came_goes_on_as_it_came_until_it_is_changed() -> None:
    bufs: list[Any] = []
    payload = Batch({"x": np.arange(4), "t": ["a"] * 4}, meta={"step": 1})._encode(bufs)
    came = Batch._decode(payload, [memoryview(bytearray(buf)) for buf in bufs])
    again: list[Any] = []
    assert came["x"][1] == 1 and came._encode(again) == payload
    assert list(map(bytes, again)) == list(map(bytes, bufs))
    assert came[1:3]._encode([]) != payload and came._encode([]) == payload
    came.meta["step"] = 2
    changed: list[Any] = []
    last = Batch._decode(came._encode(changed), [bytes(buf) for buf in changed])
    assert last.meta == {"step": 2} and last["t"] == ["a"] * 4
    came.release()
    with pytest.raises(ReleasedError):
        came._encode([])


def test_only_what_is_used_is_written(placed: Placed) -> None:
    batch = Batch({"x": np.zeros((1000, 100)), "y": list(range(1000))})
    few = batch[[5, 5, 7]]
    assert sent(few)["y"] == [5, 5, 7]
    assert placed.sizes[-1] < 10_000
    assert sent(few.select("y"))["y"] == [5, 5, 7]  # of what is written already
    assert len(placed.sizes) == 1
    assert sent(batch.select("y"))["y"] == list(range(1000))
    assert placed.whats[-1] == "batch of 1000 rows: y"
    halves = batch.chunk(2)
    assert [sent(half)["y"][0] for half in halves] == [0, 500]
    assert placed.whats[-1] == "batch of 1000 rows: x, y" and len(placed.whats) == 3
    assert sent(batch)["y"] == list(range(1000)) and len(placed.whats) == 3


def test_many_small_ones_travel_as_one(placed: Placed) -> None:
    many = Batch.concat([Batch({"x": np.full(2, i), "t": [str(i), None]}) for i in range(100)])
    received = Batch.concat([sent(Batch({"x": np.full(2, i), "t": ["r", "s"]})) for i in range(99)])
    for made in (many, received, Batch.concat([many, received])):
        before = made.to_dict()
        bufs: list[Any] = []
        payload = made._encode(bufs)
        assert len(bufs) == 1
        check(Batch._decode(payload, bufs), before)


def test_names_are_told_of_many_columns(placed: Placed) -> None:
    Batch({f"c{i}": [1] for i in range(20)})._encode([])
    assert placed.whats == ["batch of 1 rows: c0, c1, c2, c3, c4, c5, c6, c7, …"]


def test_nothing_of_others_memory_is_sent(placed: Placed) -> None:
    bufs: list[Any] = []
    Batch({"a": np.zeros(2, "u1"), "b": ["x", None], "c": [b"", b""]})._encode(bufs)
    assert b"\xee" not in bytes(bufs[0])


def test_pickle_off() -> None:
    plain = {"x": np.zeros(2), "t": ["a", None], "l": [[1], []], "r": [np.zeros(1), np.zeros(2)]}
    check(sent(Batch(plain), "off"), plain)
    with pytest.raises(EncodingError, match=r"row 0 of column 'o', a set, .* pickle, which is off"):
        Batch({"o": [{1}, {2}]})._encode([], "off")
    with pytest.raises(EncodingError, match="pickle"):
        Batch({"x": [1]}, meta={"m": threading.Event})._encode([], "off")
    objects = sent(Batch({"o": [{1}, {2}]}))
    assert sent(objects[1:], "off")["o"] == [{2}]  # pickled by someone who may


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(EncodingError, match=r"row 1 of column 'o', a _thread.lock, cannot be sent"):
        Batch({"o": [1.5, threading.Lock()]})._encode([])


def test_threads_send_one_batch(placed: Placed) -> None:
    batch = Batch({"x": np.zeros(1000)})
    threads = [threading.Thread(target=batch._encode, args=([],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(placed.whats) == 1


def test_malformed_objects() -> None:
    bufs: list[Any] = []
    payload = Batch({"x": np.zeros(3), "r": [[1], [2], [3]]})._encode(bufs)
    good = bytes(bufs[0])
    for data in (b"", b"MBT1", b"MBT2" + good[4:], good[:40], good[:8] + b"\xff" * 56 + good[64:]):
        with pytest.raises(ProtocolError, match="an object that is no batch"):
            Batch._decode(payload, [data])["x"]
    with pytest.raises(ProtocolError, match="column 'r' of a batch cannot be read"):
        Batch._decode(payload, [good[:-8]])["r"]
    longer = Batch({"x": np.zeros(4), "r": [[1]] * 4})._encode([])
    with pytest.raises(ProtocolError, match="names row 3 of column 'x', whose object has 3"):
        Batch._decode(longer, [good])["x"]
    other = Batch({"y": np.zeros(3)})._encode([])
    with pytest.raises(ProtocolError, match="has no column 'y'"):
        Batch._decode(other, [good])["y"]


def test_random_damage_is_told() -> None:
    rng = np.random.default_rng(0)
    bufs: list[Any] = []
    Batch({"x": np.zeros(3), "t": ["a", None, "b"], "o": [1, None, "x"]})._encode(bufs)
    payload = Batch({"x": np.zeros(3), "t": ["a", None, "b"], "o": [1, None, "x"]})._encode([])
    for _ in range(300):
        data = bytearray(bufs[0])
        for _ in range(3):
            data[rng.integers(0, 120)] = rng.integers(0, 256)
        try:
            Batch._decode(payload, [data]).to_dict()
        except (muster.MusterError, UnicodeDecodeError, ValueError):
            pass


# --- its end ---------------------------------------------------------------------------


def test_released(batch: Batch) -> None:
    view, part = batch["ids"], batch[2:4]
    with batch as same_batch:
        assert same_batch is batch
    assert repr(batch) == "Batch(released)"
    uses: list[Any] = [
        *(lambda: len(batch), lambda: batch["ids"], lambda: batch[0], lambda: batch[1:2]),
        *(lambda: batch.columns, lambda: batch.meta, lambda: batch.select(), lambda: list(batch)),
        *(lambda: batch._encode([]), lambda: Batch.concat([batch]), lambda: batch.nbytes),
        *(lambda: batch.take([0]), lambda: batch.union(part), lambda: "ids" in batch),
        *(lambda: batch.to_dict(), lambda: batch.with_meta(a=1), batch.__enter__),
    ]
    for use in uses:
        with pytest.raises(ReleasedError, match="was released"):
            use()
    batch.release()
    assert view.sum() == 66 and len(part["ids"]) == 2


class Leased:
    """A source that tells whether its bytes are still in use."""

    partial = False

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.nbytes = len(data)
        self.roots: list[weakref.ref[Any]] = []

    def root(self) -> Any:
        made = self.roots[-1]() if self.roots else None
        if made is None:
            made = np.frombuffer(bytearray(self.data), np.uint8)
            self.roots.append(weakref.ref(made))
        return made

    def in_use(self) -> int:
        gc.collect()
        return sum(root() is not None for root in self.roots)


def test_bytes_are_held_for_as_long_as_they_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bufs: list[Any] = []
    payload = Batch({"x": np.arange(9), "r": [np.arange(3)] * 9, "t": ["a"] * 9})._encode(bufs)
    source = Leased(bytes(bufs[0]))
    monkeypatch.setattr(_objects, "from_buffer", lambda buf: source)
    batch = Batch._decode(payload, bufs)
    assert batch.columns and len(batch) == 9 and not source.roots  # not even opened
    assert batch[2:]["t"][0] == "a"
    assert source.in_use() == 0 and len(source.roots) == 1
    assert len(batch[1:].to_dict()["t"]) == 8
    assert source.in_use() == 0 and len(source.roots) == 2  # opened once for all columns
    row = batch["r"][4]
    part = batch[3:6]["x"]
    assert source.in_use() == 1
    batch.release()
    assert source.in_use() == 1
    del row
    assert source.in_use() == 1 and part.tolist() == [3, 4, 5]
    del part, batch
    assert source.in_use() == 0


def test_import_stays_light() -> None:
    code = (
        "import sys, muster; assert 'numpy' not in sys.modules; muster.Batch; "
        "assert not {'torch', 'pyarrow', 'pandas'} & sys.modules.keys(); "
        "b = muster.Batch({'x': [1]}); b._encode([]); b['x']; b[[0]]; "
        "assert not {'torch', 'pyarrow', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
