"""What the documents show works."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", ["kv.md", "quotas.md"])
def test_the_examples_of_the_guide(path, name):
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, f"docs/{name}", "exec"), {"path": path})
