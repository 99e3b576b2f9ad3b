"""fsspec's own tests of what every file system does."""

import fsspec
import pytest

import holdfast

abstract = pytest.importorskip("fsspec.tests.abstract")


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, tmp_path):
        pool = tmp_path / "pool"
        holdfast.open(pool, create=True).close()
        return fsspec.filesystem("holdfast", pool=str(pool), skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self):
        return "keys"

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass
