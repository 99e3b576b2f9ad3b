"""Values as files of fsspec, found by the scheme of their URL."""

import datetime
import time

import fsspec
import pytest

import holdfast


@pytest.fixture
def files(path):
    holdfast.open(path, create=True).close()
    fsspec.get_filesystem_class("holdfast").clear_instance_cache()
    return fsspec.filesystem("holdfast", pool=str(path), skip_instance_cache=True)


def test_a_url_leads_to_a_value(files, path, monkeypatch):
    with fsspec.open("holdfast://ks/dir/file.txt", "w", pool=str(path)) as file:
        file.write("hello\nyou\n")
    with fsspec.open("holdfast://ks/dir/file.txt", pool=str(path)) as file:
        assert file.read() == b"hello\nyou\n"
    monkeypatch.setenv("HOLDFAST_POOL", str(path))
    with fsspec.open("holdfast://ks/dir/file.txt", "r") as file:
        assert file.readlines() == ["hello\n", "you\n"]
    with holdfast.open(path) as pool:
        assert pool["ks"][b"dir/file.txt"] == b"hello\nyou\n"


def test_a_pool_must_be_named(monkeypatch):
    monkeypatch.delenv("HOLDFAST_POOL", raising=False)
    with pytest.raises(ValueError):
        fsspec.filesystem("holdfast", skip_instance_cache=True)


def test_listing(files):
    for name in ["ks/a", "ks/d/b", "ks/d/e/c", "ks/d0", "other/x"]:
        files.pipe_file(name, name.encode())
    assert files.ls("", detail=False) == ["ks", "other"]
    assert files.ls("holdfast://ks", detail=False) == ["ks/a", "ks/d", "ks/d0"]
    assert files.ls("ks/d", detail=False) == ["ks/d/b", "ks/d/e"]
    assert files.ls("ks/a") == [{"name": "ks/a", "size": 4, "type": "file"}]
    assert files.info("ks/d")["type"] == "directory" and files.isdir("ks") and files.isfile("ks/a")
    assert files.find("ks") == ["ks/a", "ks/d/b", "ks/d/e/c", "ks/d0"]
    assert files.glob("ks/d/*") == ["ks/d/b", "ks/d/e"]
    assert not files.exists("ks/none") and not files.exists("none/a")
    for use in [files.ls, files.info, files.cat_file, files.rm_file, files.open]:
        for path in ["ks/none", "none/a"]:
            with pytest.raises(FileNotFoundError):
                use(path)


def test_changes(files):
    files.pipe({"ks/a": b"1", "ks/b": b"22"})
    assert files.cat("ks/a") == b"1" and files.cat_file("ks/b", 1, 2) == b"2"
    files.cp_file("ks/b", "ks/c")
    files.mv("ks/a", "ks/d")
    with files.open("ks/c", "ab") as file:
        file.write(b"3")
    assert files.cat("ks/c") == b"223" and files.cat("ks/d") == b"1"
    with pytest.raises(FileExistsError):
        files.open("ks/c", "xb")
    with files.open("ks/big", "wb") as file:
        file.write(b"x" * 5_000_000)
    assert files.size("ks/big") == 5_000_000
    with files.open("ks/big") as file:
        file.seek(4_999_990)
        assert file.read() == b"x" * 10
    files.rm("ks", recursive=True)
    assert files.ls("ks") == []


def test_a_snapshot(files, path):
    files.pipe_file("ks/a", b"before")
    with holdfast.open(path) as pool:
        pool.create_snapshot("then")
    files.pipe_file("ks/a", b"after")
    then = fsspec.filesystem(
        "holdfast", pool=str(path), snapshot="then", skip_instance_cache=True
    )
    assert then.cat("ks/a") == b"before" and files.cat("ks/a") == b"after"
    with pytest.raises(OSError):
        then.pipe_file("ks/a", b"never")


def test_times(files):
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
    files.pipe_file("ks/a", b"1")
    first, key = files.modified("ks/a"), files.ukey("ks/a")
    assert before < first and files.created("ks/a") == first and files.info("ks/a")["mtime"]
    time.sleep(0.05)
    files.pipe_file("ks/a", b"2")
    assert files.modified("ks/a") > first and files.ukey("ks/a") != key
    with pytest.raises(FileNotFoundError):
        files.modified("ks/none")


def test_ways_to_write(files):
    with files.open("ks/a", "xb") as file:
        file.write(b"12345")
        files.pipe_file("ks/b", b"x")
    with pytest.raises(FileExistsError):
        with files.open("ks/c", "xb") as file:
            file.write(b"late")
            files.pipe_file("ks/c", b"first")
    assert files.cat("ks/c") == b"first"
    with files.open("ks/a", "r+b") as file:
        file.seek(2)
        file.write(b"-")
    assert files.cat("ks/a") == b"12-45"
    with pytest.raises(ZeroDivisionError):
        with files.open("ks/a", "r+b") as file:
            file.write(b"nothing of it")
            1 / 0
    assert files.cat("ks/a") == b"12-45"
    assert files.cat_ranges(["ks/a", "ks/a", "ks/a"], [1, -2, 4], [3, None, 9]) == [b"2-", b"45", b"5"]
    with pytest.raises(FileExistsError):
        files.pipe_file("ks/a", b"", mode="create")
    files.touch("ks/a", truncate=False)
    assert files.size("ks/a") == 5
    files.touch("ks/a")
    assert files.size("ks/a") == 0


def test_transactions(files):
    with files.transaction:
        for name in ["ks/a", "ks/b"]:
            with files.open(name, "wb") as file:
                file.write(name.encode())
        files.pipe_file("other/c", b"3")
        assert not files.exists("ks/a") and not files.exists("other/c")
    assert files.cat(["ks/a", "ks/b"]) == {"ks/a": b"ks/a", "ks/b": b"ks/b"}
    assert files.cat("other/c") == b"3"
    with pytest.raises(ZeroDivisionError):
        with files.transaction:
            files.pipe_file("ks/d", b"4")
            1 / 0
    assert not files.exists("ks/d")
    files.pipe_file("ks/d", b"5")
    assert files.cat("ks/d") == b"5"


def test_moving(files):
    files.pipe({"ks/a": b"1", "ks/d/b": b"2"})
    files.mv("ks/a", "new/e")
    assert files.cat("new/e") == b"1" and not files.exists("ks/a")
    files.mv("ks", "moved")
    assert files.find("moved") == ["moved/d/b"] and not files.exists("ks")
    files.mv("moved/d", "moved/x", recursive=True)
    assert files.find("moved") == ["moved/x/b"] and files.du("moved") == 1
    assert files.find("moved/x/b") == ["moved/x/b"] and files.find("none") == []
