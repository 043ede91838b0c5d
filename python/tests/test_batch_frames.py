"""Batches with the real polars, DuckDB, pandas and datasets."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schemas import check, objects, same

from muster import Batch

pa = pytest.importorskip("pyarrow")

DAY = datetime.datetime(2024, 1, 1)
FILES = [".parquet", ".arrow", ".feather"]


@pytest.fixture
def batch() -> Batch:
    return Batch(
        {
            "ids": np.arange(9).reshape(3, 3),
            "mask": np.array([True, False, True]),
            "masks": np.array([[True, False], [True, True], [False, False]]),
            "score": np.array([1.5, 2.5, 3.5], np.float32),
            "prompt": ["a", None, "é"],
            "answer": np.array(["yes", "no", "é"]),
            "image": [b"\x89PNG", None, b""],
            "reply": [np.arange(2), None, np.arange(0)],
            "kept": [np.array([True]), np.array([], bool), np.array([False, True])],
            "when": np.array(["2024-01-01", "NaT", "2024-01-01"], "<M8[s]"),
            "later": np.array(["2024-01-01", "NaT", "2024-01-01"], "<M8[ns]"),
            "turns": [[{"role": "user", "text": "hi"}], [], None],
            "reward": [0.5, None, 1.5],
            "day": np.array(["2024-01-01", "NaT", "2024-01-01"], "<M8[D]"),
        },
        meta={"step": 3},
    )


# --- polars ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FILES)
def test_polars_computes_with_files(batch: Batch, suffix: str, tmp_path: Path) -> None:
    pl: Any = pytest.importorskip("polars")
    path = tmp_path / f"x{suffix}"
    batch.export(path)
    frame = pl.read_parquet(path) if suffix == ".parquet" else pl.read_ipc(path)
    assert frame.filter("mask")["score"].to_list() == [1.5, 3.5]
    assert frame["mask"].dtype == pl.Boolean and frame["mask"].sum() == 2
    assert frame["ids"].arr.sum().to_list() == [3, 12, 21]
    assert frame["masks"].arr.any().to_list() == [True, True, False]
    assert frame["reply"].list.sum().to_list() == [1, None, 0]
    assert frame["kept"].list.any().to_list() == [True, False, True]
    assert frame["prompt"].to_list() == ["a", None, "é"]
    assert frame["answer"].str.len_chars().to_list() == [3, 2, 1]
    assert frame["image"].to_list() == [b"\x89PNG", None, b""]
    assert frame["when"].to_list() == frame["later"].to_list() == [DAY, None, DAY]
    assert frame["day"].to_list() == [DAY.date(), None, DAY.date()]
    assert frame["reward"].mean() == 1.0
    assert frame["turns"].to_list() == [[{"role": "user", "text": "hi"}], [], None]


def test_frames_of_polars_come_in() -> None:
    pl: Any = pytest.importorskip("polars")
    cases: dict[str, tuple[Any, Any]] = {
        "numbers": (pl.Series([1, 2]), np.array([1, 2])),
        "floats": (pl.Series([1.5, 2.5], dtype=pl.Float32), np.array([1.5, 2.5], np.float32)),
        "holes": (pl.Series([1, None]), [1, None]),
        "bools": (pl.Series([True, None]), [True, None]),
        "texts": (pl.Series(["a", None]), ["a", None]),
        "bytes": (pl.Series([b"a", b"b"]), [b"a", b"b"]),
        "words": (pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"]),
        "words with holes": (pl.Series(["b", None], dtype=pl.Categorical), ["b", None]),
        "enum": (pl.Series(["b", "a"], dtype=pl.Enum(["a", "b"])), ["b", "a"]),
        "lists": (pl.Series([[1], [2, 3]]), [np.array([1]), np.array([2, 3])]),
        "lists of words": (pl.Series([["a"], []], dtype=pl.List(pl.Categorical)), [["a"], []]),
        "arrays": (
            pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)),
            np.array([[1, 2], [3, 4]]),
        ),
        "structs": (pl.Series([{"a": 1}, {"a": 2}]), [{"a": 1}, {"a": 2}]),
        "days": (pl.Series([DAY.date(), None]), [DAY.date(), None]),
        "times": (pl.Series([DAY, None]), np.array(["2024-01-01", "NaT"], "<M8[us]")),
    }
    series = {name: given for name, (given, _) in cases.items()}
    expected = {name: value for name, (_, value) in cases.items()}
    check(Batch.of(pl.DataFrame(series)), expected)
    check(Batch(series), expected)
    twice = pl.DataFrame(series)
    check(Batch.of(pl.concat([twice, twice], rechunk=False))[2:], expected)


def test_columns_of_polars_that_arrow_lacks() -> None:
    pl: Any = pytest.importorskip("polars")
    things = [{1}, "a", None]
    series = {"x": pl.Series([1, 2, 3]), "o": pl.Series(things, dtype=pl.Object), "t": ["a"] * 3}
    expected = {"x": np.array([1, 2, 3]), "o": objects(things), "t": ["a"] * 3}
    for batch in (Batch(series), Batch.of(pl.DataFrame(series))):
        assert batch.columns == ["x", "o", "t"]
        check(batch, expected)
    check(Batch.of(pl.DataFrame({"o": series["o"]})), {"o": objects(things)})
    for kind, value in ((pl.Int128, 1 << 70), (pl.List(pl.Int128), [1 << 70])):
        large = {"x": [1], "large": pl.Series([value], dtype=kind)}
        for take, given in ((Batch, large), (Batch.of, pl.DataFrame(large))):
            with pytest.raises(TypeError, match=r"column 'large' of .*Int128.* by Arrow: .*: cast"):
                take(given)


# --- DuckDB ------------------------------------------------------------------------------


def test_duckdb_computes_with_files(batch: Batch, tmp_path: Path) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    batch.export(tmp_path / "x.parquet")
    source = f"'{tmp_path}/x.parquet'"
    found = duckdb.sql(f"select sum(score), count(prompt), sum(len(reply)) from {source}")
    assert found.fetchall() == [(7.5, 2, 2)]
    found = duckdb.sql(f"select list_sum(ids), answer, later, day from {source} where mask")
    assert found.fetchall() == [(3, "yes", DAY, DAY.date()), (21, "é", DAY, DAY.date())]
    found = duckdb.sql(f"select avg(reward), first(turns)[1].text from {source} where mask")
    assert found.fetchall() == [(1.0, "hi")]
    found = duckdb.sql(f'select count(later), count("when"), count(day) from {source}')
    assert found.fetchall() == [(2, 2, 2)]


# --- pandas ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FILES)
def test_pandas_computes_with_files(batch: Batch, suffix: str, tmp_path: Path) -> None:
    pd: Any = pytest.importorskip("pandas")
    path = tmp_path / f"x{suffix}"
    batch.export(path)
    frame = pd.read_parquet(path) if suffix == ".parquet" else pd.read_feather(path)
    assert frame[frame["mask"]]["score"].tolist() == [1.5, 3.5]
    assert frame["answer"].str.upper().tolist() == ["YES", "NO", "É"]
    assert frame["when"].isna().tolist() == frame["later"].isna().tolist() == [False, True, False]
    assert frame["ids"].iloc[1].tolist() == [3, 4, 5]


def test_frames_of_pandas_come_in() -> None:
    pd: Any = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "x": [1, 2],
            "t": ["a", None],
            "c": pd.Categorical(["b", "a"]),
            "n": pd.array([1, None], dtype="Int64"),
        }
    )
    expected = {"x": np.array([1, 2]), "t": ["a", None], "c": ["b", "a"], "n": [1, None]}
    check(Batch.of(frame), expected)
    check(Batch({name: frame[name] for name in frame}), expected)


def test_columns_of_pandas_that_arrow_lacks() -> None:
    pd: Any = pytest.importorskip("pandas")
    months = pd.period_range("2020-01", periods=2, freq="M")
    steps = pd.interval_range(0, 2)
    frame = pd.DataFrame(
        {
            "x": [1, 2],
            "month": months,
            "step": steps,
            "months": pd.Categorical(list(months)),
            "few": pd.arrays.SparseArray([0, 5]),
            "zone": pd.to_datetime(["2024-01-01", None], utc=True),
            "yes": pd.array([True, None], dtype="boolean"),
            "s": pd.array(["a", None], dtype="string"),
            "arrow": pd.array([1, 2], dtype="int64[pyarrow]"),
        }
    )
    expected = {
        "x": np.array([1, 2]),
        "month": objects(list(months)),
        "step": objects(list(steps)),
        "months": objects(list(months)),
        "few": np.array([0, 5]),
        "zone": np.array(["2024-01-01", "NaT"], "<M8[us]"),
        "yes": [True, None],
        "s": ["a", None],
        "arrow": np.array([1, 2]),
    }
    for batch in (Batch.of(frame), Batch({name: frame[name] for name in frame})):
        assert batch.columns == list(frame)
        check(batch, expected)
    check(Batch.of(frame[["month"]]), {"month": objects(list(months))})
    with pytest.raises(ValueError, match="several columns called 'month'"):
        Batch.of(frame[["month", "month"]])


# --- datasets ----------------------------------------------------------------------------


def test_datasets_come_in() -> None:
    hf: Any = pytest.importorskip("datasets")
    chat = [[{"role": "user", "content": "hi"}], []]
    given = hf.Dataset.from_dict({"q": ["a", "b"], "ids": [[1, 2], [3]], "chat": chat})
    expected: dict[str, Any] = {
        "q": ["a", "b"],
        "ids": [np.array([1, 2]), np.array([3])],
        "chat": chat,
    }
    check(Batch.from_hf(given), expected)
    check(Batch.of(given), expected)
    picked: dict[str, Any] = {name: value[::-1] for name, value in expected.items()}
    check(Batch.of(given.select([1, 0])), picked)
    assert len(Batch.of(given.select([]))) == 0
    check(Batch.of(given.with_format("numpy", columns=["q"])), expected)
    assert Batch({"q": given["q"]})["q"] == ["a", "b"]
    stream = given.to_iterable_dataset()
    for take in (Batch.from_hf, Batch.of):
        with pytest.raises(TypeError, match="IterableDataset has no rows to take"):
            take(stream)
    check(
        Batch.of(hf.Dataset.from_list(list(stream.take(1)))),
        {n: v[:1] for n, v in expected.items()},
    )


def test_arrays_of_datasets_are_arrays() -> None:
    hf: Any = pytest.importorskip("datasets")
    features = hf.Features(
        {
            "square": hf.Array2D((2, 2), "int32"),
            "rows": hf.Array2D((None, 2), "float32"),
            "cube": hf.Array3D((1, 2, 2), "int8"),
            "holes": hf.Array2D((1, 2), "int64"),
            "label": hf.ClassLabel(names=["x", "y"]),
        }
    )
    square, cube = [[1, 2], [3, 4]], [[[1, 2], [3, 4]]]
    given = hf.Dataset.from_dict(
        {
            "square": [square, square],
            "rows": [[[1, 2]], [[1, 2], [3, 4]]],
            "cube": [cube, cube],
            "holes": [[[5, 6]], None],
            "label": [0, 1],
        },
        features=features,
    )
    expected: dict[str, Any] = {
        "square": np.array([square, square], np.int32),
        "rows": [np.array([[1, 2]], np.float32), np.array([[1, 2], [3, 4]], np.float32)],
        "cube": np.array([cube, cube], np.int8),
        "holes": [np.array([[5, 6]]), None],
        "label": np.array([0, 1]),
    }
    check(Batch.from_hf(given), expected)
    check(Batch.from_hf(given.select([1])), {name: value[1:] for name, value in expected.items()})
    check(Batch.from_hf(hf.concatenate_datasets([given, given]))[2:], expected)


def test_datasets_of_batches(batch: Batch) -> None:
    hf: Any = pytest.importorskip("datasets")
    made = Batch.concat([batch[:1], batch[1:]]).to_hf()
    assert isinstance(made, hf.Dataset) and len(made) == 3
    rows = made[:]
    assert rows["mask"] == [True, False, True] and rows["answer"] == ["yes", "no", "é"]
    assert rows["ids"] == batch["ids"].tolist() and rows["masks"] == batch["masks"].tolist()
    assert rows["reply"] == [[0, 1], None, []] and rows["kept"] == [[True], [], [False, True]]
    assert rows["when"][1] is None and rows["day"] == [DAY.date(), None, DAY.date()]
    assert made.filter(lambda row: row["mask"], keep_in_memory=True).num_rows == 2
    back = Batch.from_hf(made)
    for name in ("ids", "mask", "masks", "score", "prompt", "image", "kept", "when", "later"):
        assert same(back[name], batch[name]), name
