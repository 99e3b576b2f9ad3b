"""Pools: keyspaces, batches, views, snapshots, other processes, and what is closed."""

import errno
import os
import pathlib
import subprocess
import sys
import time

import pytest

import holdfast


def test_keyspaces(pool):
    with pytest.raises(holdfast.Error) as caught:
        pool.keyspace("none")
    assert caught.value.errno == errno.ENOENT and caught.value.strerror
    with pytest.raises(KeyError):
        pool["none"]
    one = pool.keyspace("one", create=True)
    assert one.name == "one" and "one" in pool and "none" not in pool
    one[b"k"] = b"1"
    pool.keyspace("two", create=True)[b"k"] = b"2"
    assert pool["one"][b"k"] == b"1" and pool["two"][b"k"] == b"2"
    assert sorted(pool) == ["one", "two"] == sorted(pool.keyspaces())
    for name in ["", "a/b", "..", "n" * 300, "\0"]:
        with pytest.raises((holdfast.Error, ValueError)):
            pool.keyspace(name, create=True)


def test_a_missing_pool_says_what_helps(path):
    with pytest.raises(holdfast.Error) as caught:
        holdfast.open(path)
    assert caught.value.errno == errno.ENOENT and "create" in caught.value.fix
    assert not path.exists()


def test_batches(pool):
    one, two = (pool.keyspace(name, create=True) for name in ["one", "two"])
    one[b"old"] = b"1"
    with pool.batch() as batch:
        batch.put(one, b"new", b"2")
        batch.erase(one, b"old")
        batch.put(two, b"x", b"3")
        batch.put(two, b"y", b"4")
        batch.erase_range(two, b"y")
        assert len(batch) == 5
        assert dict(one) == {b"old": b"1"} and not two
    assert dict(one) == {b"new": b"2"} and dict(two) == {b"x": b"3"}
    with pytest.raises(RuntimeError):
        with pool.batch() as batch:
            batch.put(one, b"never", b"")
            raise RuntimeError
    assert b"never" not in one
    for use in [batch.commit, lambda: batch.put(one, b"k", b"")]:
        with pytest.raises(holdfast.Error):
            use()


def test_a_batch_is_of_one_pool(pool, tmp_path):
    with holdfast.open(tmp_path / "other", create=True) as other:
        there = other.keyspace("k", create=True)
        with pytest.raises(ValueError):
            pool.batch().put(there, b"k", b"v")


def test_views_do_not_change(pool, keys):
    keys[b"k"] = b"before"
    with pool.read() as view:
        keys[b"k"] = b"after"
        keys[b"more"] = b""
        then = view["keys"]
        assert dict(then) == {b"k": b"before"} and keys[b"k"] == b"after"
        with then.open(b"k") as file:
            assert file.read() == b"before"
        for change in [
            lambda: then.put(b"k", b""),
            lambda: then.erase(b"k"),
            lambda: then.clear(),
            lambda: then.open(b"k", "wb"),
        ]:
            with pytest.raises(holdfast.Error) as caught:
                change()
            assert caught.value.errno == errno.EROFS
    with pytest.raises(holdfast.Error):
        then[b"k"]


def test_snapshots(pool, keys):
    keys[b"k"] = b"before"
    begun = time.time()
    pool.create_snapshot("first")
    keys[b"k"] = b"after"
    pool.create_snapshot("second")
    first, second = pool.snapshots()
    assert (first.name, second.name) == ("first", "second")
    assert abs(first.time.timestamp() - begun) < 60 and first.time_ns <= second.time_ns
    with pool.snapshot("first") as then:
        assert dict(then["keys"]) == {b"k": b"before"} and list(then) == ["keys"]
    assert keys[b"k"] == b"after"
    with pytest.raises(holdfast.Error) as caught:
        pool.create_snapshot("first")
    assert caught.value.errno == errno.EEXIST
    pool.rename_snapshot("first", "renamed")
    pool.rename_snapshot("renamed", "first")
    pool.delete_snapshot("first")
    assert [each.name for each in pool.snapshots()] == ["second"]
    for use in [pool.delete_snapshot, pool.snapshot]:
        with pytest.raises(holdfast.Error) as caught:
            use("first")
        assert caught.value.errno == errno.ENOENT


def test_quotas(pool, path):
    assert pool.quotas() == []
    pool.set_quota(user=4242, bytes=1 << 20)
    pool.set_quota(user=4242, bytes=2 << 20, files=7)
    pool.set_quota(directory="/", files=100)
    user, root = pool.quotas()
    assert user == holdfast.Quota("user", "4242", 2 << 20, 7, 0, 0, True)
    assert (root.kind, root.name, root.bytes, root.files) == ("directory", "/", None, 100)
    assert root.files_taken >= 1 and root.complete
    pool.remove_quota(user=4242)
    pool.remove_quota(directory=pathlib.Path("/"))
    assert pool.quotas() == []
    for refused, error in [
        (lambda: pool.remove_quota(user=4242), errno.ENOENT),
        (lambda: pool.set_quota(directory="/none", files=1), errno.ENOENT),
        (lambda: pool.set_quota(user=4242), errno.EINVAL),
        (lambda: pool.set_quota(user=4242, bytes=0), errno.EINVAL),
    ]:
        with pytest.raises(holdfast.Error) as caught:
            refused()
        assert caught.value.errno == error
    for words in [{}, {"user": 1, "directory": "/"}, {"user": 2**32 - 1}, {"user": 1, "keyspace": "k"}]:
        with pytest.raises(ValueError):
            pool.set_quota(**words, bytes=1 << 20)
    with pool.read() as view, pytest.raises(holdfast.Error) as caught:
        view.set_quota(user=1, bytes=1 << 20)
    assert caught.value.errno == errno.EROFS


def test_a_quota_of_a_keyspace(pool, keys):
    name = keys.name
    pool.set_quota(keyspace=name, bytes=10_000)
    keys[b"k"] = b"x" * 1000
    with pytest.raises(holdfast.Error) as caught:
        keys[b"large"] = b"x" * 20_000
    assert caught.value.errno == errno.EDQUOT and b"large" not in keys
    (quota,) = pool.quotas()
    assert quota == holdfast.Quota("keyspace", name, 10_000, None, 1001, 2, True)
    for _ in range(100):
        keys[b"k"] = b"x" * 1500
    pool.remove_quota(keyspace=name)
    keys[b"large"] = b"x" * 20_000
    with pytest.raises(holdfast.Error) as caught:
        pool.set_quota(keyspace="none", bytes=1 << 20)
    assert caught.value.errno == errno.ENOENT


def test_a_pool_grows(pool, keys, path):
    keys[b"k"] = b"x" * 100_000
    segment = path / "data-0.seg"
    wanted = segment.stat().st_size + (4 << 20)
    pool.grow(wanted)
    assert segment.stat().st_size == wanted
    assert len(keys[b"k"]) == 100_000
    for size, error in [(16 << 20, errno.EBUSY), (1 << 20, errno.EINVAL)]:
        with pytest.raises(holdfast.Error) as caught:
            pool.grow(size)
        assert caught.value.errno == error


def test_another_process(pool, keys, path):
    keys[b"from here"] = b"1"
    there = (
        "import holdfast, sys\n"
        "with holdfast.open(sys.argv[1]) as pool:\n"
        "    keys = pool['keys']\n"
        "    assert keys[b'from here'] == b'1'\n"
        "    keys[b'from there'] = b'2'\n"
    )
    subprocess.run([sys.executable, "-c", there, str(path)], check=True, timeout=60)
    assert keys[b"from there"] == b"2"


def test_a_forked_process_goes_on_with_what_it_has(pool, keys):
    keys[b"k"] = b"parent"
    child = os.fork()
    if child == 0:
        try:
            keys[b"child"] = keys[b"k"]
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert keys[b"child"] == b"parent"
    # The service is nobody's child.
    with pytest.raises(ChildProcessError):
        os.wait()


def test_what_was_put_is_there_when_the_pool_is_opened_again(path):
    with holdfast.open(path, create=True) as pool:
        pool.keyspace("keys", create=True)[b"k"] = b"v"
        pool.sync()
    with holdfast.open(path) as pool:
        assert pool["keys"][b"k"] == b"v"


def test_what_is_closed_is_refused(path):
    pool = holdfast.open(path, create=True)
    keys = pool.keyspace("keys", create=True)
    keys[b"k"] = b"v"
    scan, batch, writer = keys.scan(), pool.batch(), keys.writer(b"w")
    assert not pool.closed
    pool.close()
    pool.close()
    assert pool.closed
    for use in [
        pool.sync,
        pool.keyspaces,
        pool.read,
        lambda: keys[b"k"],
        lambda: keys.put(b"k", b""),
        lambda: next(scan),
        lambda: batch.put(keys, b"k", b""),
        batch.commit,
        writer.finish,
    ]:
        with pytest.raises(holdfast.Error) as caught:
            use()
        assert caught.value.errno == errno.EINVAL
