"""Each test has a pool of its own, made by the program that the package finds."""

import pytest

import holdfast


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pool"


@pytest.fixture
def pool(path):
    with holdfast.open(path, create=True) as pool:
        yield pool


@pytest.fixture
def keys(pool):
    return pool.keyspace("keys", create=True)
