"""A keyspace is a mapping like any other, ordered by its keys."""

import random
import threading
from collections.abc import MutableMapping

import pytest

import holdfast


def test_values_come_back(keys):
    for key, value in [(b"k", b"v"), (b"a\0b", b"\0\xff"), (b"x" * 1024, b""), (b"\xff", b"y" * 70000)]:
        keys[key] = value
        assert keys[key] == value == keys.get(key)
        assert key in keys and keys.size(key) == len(value)
    assert keys.get(b"none") is None and keys.get(b"none", 7) == 7
    assert b"none" not in keys and keys.size(b"none") is None
    with pytest.raises(KeyError) as caught:
        keys[b"none"]
    assert caught.value.args == (b"none",)


def test_it_is_a_mutable_mapping(keys):
    assert isinstance(keys, MutableMapping)
    assert not keys and len(keys) == 0
    keys.update({b"b": b"2", b"a": b"1", b"c": b"3"})
    assert keys and len(keys) == 3
    assert list(keys) == [b"a", b"b", b"c"] == list(keys.keys())
    assert list(reversed(keys)) == [b"c", b"b", b"a"]
    assert list(keys.items()) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert list(keys.values()) == [b"1", b"2", b"3"]
    assert list(reversed(keys.items()))[0] == (b"c", b"3")
    assert keys == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert (b"a", b"1") in keys.items() and (b"a", b"2") not in keys.items()
    assert keys.setdefault(b"a", b"x") == b"1" and keys.setdefault(b"d", b"4") == b"4"
    assert keys.pop(b"d") == b"4" and keys.pop(b"d", None) is None
    assert keys.popitem() == (b"a", b"1")
    del keys[b"b"]
    with pytest.raises(KeyError):
        del keys[b"b"]
    keys.clear()
    assert dict(keys) == {}
    with pytest.raises(KeyError):
        keys.popitem()


def test_what_is_like_bytes_will_do(keys):
    keys[bytearray(b"key")] = memoryview(b"value")[1:]
    assert keys[memoryview(b"key")] == b"alue"
    for wrong in ["key", 7, None, [1]]:
        with pytest.raises(TypeError):
            keys[wrong]
        with pytest.raises(TypeError):
            keys[b"key"] = wrong
    assert keys[b"key"] == b"alue"


@pytest.mark.parametrize("key", [b"", b"k" * 1025])
def test_keys_that_cannot_be(keys, key):
    assert keys.get(key) is None and key not in keys
    for use in [keys.erase, lambda k: keys.put(k, b"")]:
        with pytest.raises(holdfast.Error) as caught:
            use(key)
        assert isinstance(caught.value, OSError) and caught.value.errno > 0
    assert len(keys) == 0


def test_long_scans(keys):
    """More than is read ahead at once, with values of all sizes."""
    sizes = [0, 1, 100, 3000, 5000, 70_000, 200_000]
    wanted = {b"%05d" % n: bytes([n % 251]) * sizes[n % len(sizes)] for n in range(700)}
    keys.update(wanted)
    assert list(keys.scan()) == sorted(wanted.items())
    assert list(keys.scan(reverse=True)) == sorted(wanted.items(), reverse=True)
    assert list(keys.prefix(b"001")) == sorted((k, v) for k, v in wanted.items() if k[:3] == b"001")


def test_one_scan_in_several_threads(keys):
    wanted = {b"%05d" % n: b"%d" % n for n in range(5000)}
    keys.update(wanted)
    scan, found = keys.scan(), [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda own=own: own.extend(scan)) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(own == sorted(own) for own in found)
    assert sorted(sum(found, [])) == sorted(wanted.items())


def test_scans(keys):
    for key in [b"d", b"a", b"c", b"b", b"ba", b"bb\xff"]:
        keys[key] = key * 2
    found = lambda scan: [key for key, value in scan if value == key * 2]
    assert found(keys.scan()) == [b"a", b"b", b"ba", b"bb\xff", b"c", b"d"]
    assert found(keys.scan(b"b", b"c")) == [b"b", b"ba", b"bb\xff"]
    assert found(keys.scan(start=b"bb")) == [b"bb\xff", b"c", b"d"]
    assert found(keys.scan(end=b"b")) == [b"a"]
    assert found(keys.scan(b"c", b"b")) == []
    assert found(keys.scan(b"b", b"c", reverse=True)) == [b"bb\xff", b"ba", b"b"]
    assert found(keys.prefix(b"b")) == [b"b", b"ba", b"bb\xff"]
    assert found(keys.prefix(b"bb\xff", reverse=True)) == [b"bb\xff"]
    scan = keys.scan()
    keys[b"aa"] = b"later"
    assert len(list(scan)) == 6
    keys.erase_range(b"b", b"d")
    assert list(keys) == [b"a", b"aa", b"d"]


def test_views_and_buffers(keys):
    keys[b"k"] = b"0123456789"
    view = keys.view(b"k")
    assert view.readonly and view[2:4] == b"23" and view.nbytes == 10
    keys[b"k"] = b"new"
    assert view == b"0123456789"
    buffer = bytearray(b"------")
    assert keys.get_into(b"k", buffer) == 3 and buffer == b"new---"
    assert keys.get_into(b"k", memoryview(buffer)[:2]) == 3
    assert keys.get_into(b"none", buffer) is None
    with pytest.raises(TypeError):
        keys.get_into(b"k", b"read-only")
    with pytest.raises(KeyError):
        keys.view(b"none")


def test_large_values_of_views_are_not_copied(pool, keys):
    large = bytes(range(256)) * 400
    keys.update({b"large": large, b"small": b"s"})
    with pool.read() as moment:
        seen = moment["keys"].view(b"large")
        small = moment["keys"].view(b"small")
        with pytest.raises(KeyError):
            moment["keys"].view(b"none")
    assert seen.obj.zero_copy and not small.obj.zero_copy
    keys[b"large"] = b"new"
    pool.sync()
    # The view is closed; what was lent is there until the last memoryview is gone.
    assert seen.readonly and seen == large and seen[1:3] == large[1:3] and seen.obj.intact
    assert small == b"s" and small.obj.intact and len(small.obj) == 1
    with pytest.raises(TypeError):
        seen[0] = 1
    part = seen[256:512]
    seen.release()
    assert bytes(part) == bytes(range(256))


def test_durability(keys):
    for name in ["durable", "ordered", "volatile"]:
        keys.put(b"k", name.encode(), durability=name)
        assert keys[b"k"] == name.encode()
    with pytest.raises(ValueError):
        keys.put(b"k", b"v", durability="maybe")
    assert keys.erase(b"k", durability="ordered") and not keys.erase(b"k")


def test_values_as_files(keys):
    block = bytes(range(256)) * 4096
    with keys.open(b"big", "wb") as file:
        for _ in range(3):
            assert file.write(block) == len(block)
        assert b"big" not in keys
    assert keys.size(b"big") == 3 * len(block)
    with keys.open(b"big") as file:
        assert file.read(300) == block[:300]
        assert file.seek(-10, 2) == 3 * len(block) - 10
        assert file.read() == block[-10:]
        assert file.seek(0) == 0 and file.read() == block * 3
    with pytest.raises(RuntimeError):
        with keys.open(b"big", "wb") as file:
            file.write(b"never")
            raise RuntimeError
    file = keys.open(b"big", "wb")
    file.write(b"never either")
    del file
    assert keys.size(b"big") == 3 * len(block)
    with pytest.raises(KeyError):
        keys.open(b"none")
    with pytest.raises(ValueError):
        keys.open(b"big", "r+b")


def test_it_agrees_with_a_dict(keys):
    model, choose = {}, random.Random(7)
    for _ in range(1500):
        key = bytes(choose.choices(b"abc", k=choose.randint(1, 3)))
        match choose.randrange(6):
            case 0 | 1 | 2:
                value = choose.randbytes(choose.choice([0, 3, 300, 5000]))
                keys.put(key, value, durability="ordered")
                model[key] = value
            case 3:
                assert keys.erase(key) == (model.pop(key, None) is not None)
            case 4:
                assert keys.get(key) == model.get(key)
            case 5:
                end = bytes(choose.choices(b"abc", k=2))
                expected = sorted((k, v) for k, v in model.items() if key <= k < end)
                assert list(keys.scan(key, end)) == expected
                assert list(keys.scan(key, end, reverse=True)) == expected[::-1]
    assert keys == model


def test_threads(keys):
    def work(me):
        for n in range(200):
            key = b"%d-%d" % (me, n)
            keys.put(key, key, durability="ordered")
            assert keys[key] == key

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(keys) == 800
