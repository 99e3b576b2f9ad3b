"""What the documents show works."""

import pathlib
import re

DOCS = pathlib.Path(__file__).parents[3] / "docs"


def test_the_examples_of_the_guide(path):
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "kv.md").read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/kv.md", "exec"), {"path": path})
