"""Keyspaces as a whole, changes that depend on a value, and threads."""

import asyncio
import datetime
import sys
import threading
import time

import pytest

import holdfast


def test_a_change_may_depend_on_the_value(keys):
    assert keys.put_if(b"a", None, b"1") == (True, b"1")
    assert keys.put_if(b"a", None, b"2") == (False, b"1")
    assert keys.put_if(b"a", b"1", b"2", "ordered") == (True, b"2")
    assert keys.erase_if(b"a", b"1") == (False, b"2")
    assert keys.erase_if(b"a", b"2") == (True, None)
    assert keys.erase_if(b"a", b"2") == (False, None)


def test_keys_expire(pool, keys):
    hour = datetime.timedelta(hours=1)
    end = datetime.datetime.now(datetime.timezone.utc) + hour
    keys.put(b"a", b"1", expires=hour)
    keys.put(b"b", b"2", "ordered", expires=end)
    assert abs(keys.expires_ns(b"a") - end.timestamp() * 1e9) < 60e9
    assert abs(keys.expires_ns(b"b") - end.timestamp() * 1e9) < 1e4
    keys[b"b"] = b"3"
    assert keys.expires_ns(b"b") is None and keys.expires_ns(b"none") is None
    assert keys.expire(b"b", 0) and b"b" not in keys and not keys.expire(b"b", 5)
    assert keys.put_if(b"b", None, b"4", expires=0.02) == (True, b"4")
    while b"b" in keys:
        time.sleep(0.001)
    assert list(keys.items()) == [(b"a", b"1")] and len(keys) == 1
    with pool.batch() as batch:
        batch.put(keys, b"c", b"5", expires=3600)
        batch.put(keys, b"d", b"6", expires=0)
    assert keys.expire(b"a", None) and keys.expires_ns(b"a") is None
    assert keys.expires_ns(b"c") and list(keys) == [b"a", b"c"]
    for wrong in -1, float("nan"), "soon", datetime.timedelta(seconds=-1):
        with pytest.raises((ValueError, TypeError)):
            keys.put(b"x", b"x", expires=wrong)
    assert b"x" not in keys


def test_scans_and_files_with_expiry(pool, keys):
    at = time.time_ns() + 3_600_000_000_000
    keys.put(b"a", b"1", expires=holdfast.At(at))
    keys[b"b"] = b"2"
    assert list(keys.scan(expires=True)) == [(b"a", b"1", at), (b"b", b"2", None)]
    assert list(keys.prefix(b"a", expires=True)) == [(b"a", b"1", at)]
    assert list(keys.scan()) == [(b"a", b"1"), (b"b", b"2")]
    with pool.read() as now:
        assert list(now["keys"].scan(reverse=True, expires=True))[1] == (b"a", b"1", at)
    with keys.open(b"c", "wb", expires=holdfast.At(at + 1)) as file:
        file.write(b"x" * 3_000_000)
        file.write(b"y")
    assert keys.expires_ns(b"c") == at + 1 and keys.size(b"c") == 3_000_001
    with pytest.raises(holdfast.Error) as error, keys.open(b"c", "wb", expires=5) as file:
        for _ in range(65):
            file.write(bytes(1 << 20))
    assert error.value.errno == 27 and error.value.fix and keys.size(b"c") == 3_000_001
    with keys.open(b"c", "wb", expires=0) as file:
        file.write(b"x")
    assert b"c" not in keys
    assert holdfast.At(7) == holdfast.At(7) and repr(holdfast.At(7)) == "holdfast.At(7)"


def test_a_change_may_depend_on_the_expiry(keys):
    at = time.time_ns() + 3_600_000_000_000
    keys.put(b"a", b"1", expires=holdfast.At(at))
    later = holdfast.At(at + 1)
    assert keys.expire_if(b"a", at + 1, later) == (False, at)
    assert keys.expire_if(b"a", at, later) == (True, at + 1)
    assert keys.put_if_expires(b"a", at, b"2") == (False, at + 1)
    assert keys.put_if_expires(b"a", None, b"2", expires=later) == (True, at + 1)
    assert keys.erase_if_expires(b"a", at) == (False, at + 1)
    assert keys.put_if_expires(b"a", at + 1, b"3", "ordered") == (True, None)
    assert keys.erase_if_expires(b"a") == (False, None) and keys[b"a"] == b"3"
    assert keys.expire(b"a", later) and keys.erase_if_expires(b"a") == (True, None)
    assert keys.expire_if(b"a", None, 5) == (False, None) and b"a" not in keys


def test_many_count_one_number_up(pool, keys):
    def up():
        for _ in range(100):
            now = keys.get(b"n")
            done = False
            while not done:
                done, now = keys.put_if(b"n", now, b"%d" % (int(now or 0) + 1), "ordered")

    threads = [threading.Thread(target=up) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert keys[b"n"] == b"600"


def test_keyspaces_are_renamed_and_dropped(pool, keys):
    keys.update({b"%d" % i: b"x" for i in range(100)})
    assert keys.count() == len(keys) == 100
    other = pool.keyspace("other", create=True)
    with pytest.raises(holdfast.Error) as caught:
        pool.rename_keyspace("keys", "other")
    assert caught.value.errno == 17 and caught.value.fix
    pool.rename_keyspace("keys", "other", replace=True)
    assert pool.keyspaces() == ["other"] and keys.count() == 100 and other.count() == 0
    with pool.read() as before:
        then = before["other"]
        pool.drop_keyspace("other")
        assert then.count() == 100 and b"1" in then and then.modified_ns(b"1")
        with pytest.raises(holdfast.Error):
            before.drop_keyspace("other")
    with pytest.raises(holdfast.Error):
        keys[b"1"] = b"x"
    assert b"1" not in keys and keys.count() == 0
    with pytest.raises(KeyError):
        del pool["other"]
    pool.keyspace("other", create=True)
    del pool["other"]
    assert pool.keyspaces() == []


CALLS = {
    "get": lambda keys: keys.get(b"k"),
    "put": lambda keys: keys.put(b"k", b"v", "ordered"),
    "put_if": lambda keys: keys.put_if(b"k", None, b"v"),
    "count": lambda keys: keys.count(),
    "scan": lambda keys: next(keys.scan()),
    "size": lambda keys: keys.size(b"k"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_threads_run_during_a_call(keys, call):
    """The interpreter lets go of a thread by itself after 100 s here, so it is the calls that do."""
    keys[b"k"] = b"v"
    stop, before = threading.Event(), sys.getswitchinterval()

    def work():
        while not stop.is_set():
            call(keys)

    thread = threading.Thread(target=work)
    sys.setswitchinterval(100)
    begun = time.monotonic()
    try:
        thread.start()
        for _ in range(3):
            # Comes back once the other thread has let go of the interpreter.
            threading.Event().wait(0.001)
        assert time.monotonic() - begun < 50
    finally:
        sys.setswitchinterval(before)
        stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_calls_from_asyncio(keys):
    async def main():
        await asyncio.gather(
            *(asyncio.to_thread(keys.put, b"%d" % i, b"v", "ordered") for i in range(50))
        )
        return await asyncio.to_thread(keys.count)

    assert asyncio.run(main()) == 50
