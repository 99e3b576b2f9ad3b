"""Type checkers see what the package says of itself."""

import subprocess
import sys

import pytest

PROGRAM = """
import holdfast
with holdfast.open("/pool", create=True) as pool:
    keys = pool.keyspace("keys", create=True)
    value: bytes | None = keys.get(b"a")
    count: int = len(keys)
    done, present = keys.put_if(b"a", None, b"b")
    known: bool = done
    now: bytes | None = present
    for key, each in keys.items():
        both: bytes = key + each
    with pool.read() as then:
        time: int | None = then["keys"].modified_ns(b"x")
    keys.put(b"a", b"b", expires=3)
    limits: list[int | None] = [each.bytes for each in pool.quotas()]
    end: int | None = keys.expires_ns(b"a")
    with keys.open(b"f", "wb", expires=holdfast.At(7)) as file:
        file.write(b"x")
    for key, each, time in keys.scan(expires=True):
        both = key + each
    keys["text"] = b"x"  # type: ignore[index]
    wrong: str = keys[b"a"]  # type: ignore[assignment]
"""


def test_types(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # What needs no ignoring is reported: so each mistake above is seen.
    options = ["--strict", "--warn-unused-ignores", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, str(program)]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
