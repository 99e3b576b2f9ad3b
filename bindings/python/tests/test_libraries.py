"""Libraries that read and write holdfast:// URLs. One that is not there is skipped."""

import fsspec
import pytest


@pytest.fixture
def url(path, monkeypatch):
    import holdfast

    holdfast.open(path, create=True).close()
    monkeypatch.setenv("HOLDFAST_POOL", str(path))
    fsspec.get_filesystem_class("holdfast").clear_instance_cache()
    yield "holdfast://data"
    fsspec.get_filesystem_class("holdfast").clear_instance_cache()


def test_pandas(url):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": range(1000), "b": [f"text {i}" for i in range(1000)]})
    table.to_csv(f"{url}/table.csv", index=False)
    assert pandas.read_csv(f"{url}/table.csv").equals(table)
    pytest.importorskip("pyarrow")
    table.to_parquet(f"{url}/table.parquet")
    assert pandas.read_parquet(f"{url}/table.parquet").equals(table)


def test_pyarrow(url):
    pyarrow = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    files = fsspec.filesystem("holdfast")
    table = pyarrow.table({"part": [i % 3 for i in range(900)], "n": range(900)})
    dataset.write_dataset(
        table, "data/set", format="parquet", filesystem=files, partitioning=["part"]
    )
    found = dataset.dataset("data/set", filesystem=files, partitioning=["part"])
    assert found.count_rows() == 900
    assert found.to_table(filter=dataset.field("part") == 1).num_rows == 300


def test_duckdb(url):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register_filesystem(fsspec.filesystem("holdfast"))
        for kind in ["csv", "parquet"]:
            connection.execute(f"copy (select range as n from range(5000)) to '{url}/n.{kind}'")
            found = connection.execute(f"select sum(n), count(*) from '{url}/*.{kind}'").fetchone()
            assert found == (4999 * 2500, 5000)


def test_zarr(url):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(f"{url}/array.zarr", shape=(100, 100), chunks=(10, 10), dtype="i4")
    array[:] = 7
    array[3, 4] = 8
    again = zarr.open_array(f"{url}/array.zarr", mode="r")
    assert again[3, 4] == 8 and again[:].sum() == 70001


def test_xarray(url):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    data = xarray.Dataset({"t": (("x", "y"), [[1.5, 2.5], [3.5, 4.5]])}, coords={"x": [10, 20]})
    data.to_zarr(f"{url}/set.zarr", consolidated=False)
    assert xarray.open_zarr(f"{url}/set.zarr", consolidated=False).load().equals(data)


def test_dask(url):
    bag = pytest.importorskip("dask.bag")
    lines = bag.from_sequence([str(i) for i in range(100)], npartitions=4)
    written = lines.to_textfiles(f"{url}/lines-*.txt", compute=False)
    import dask

    dask.compute(*written if isinstance(written, list) else [written], scheduler="threads")
    found = bag.read_text(f"{url}/lines-*.txt").map(str.strip).map(int).sum()
    assert found.compute(scheduler="threads") == 4950
