"""The example of docs/defenses.md, so that it can stand in the table of tests and in a package."""

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "defenses.md"


def examples(page):
    """The Python examples, each after as many empty lines as put it where it stands in the page."""
    text = page.read_text("utf-8")
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield "\n" * text.count("\n", 0, block.start(1)) + block[1]


def source():
    """The example of a defense, as a file of its own."""
    (found,) = (block for block in examples(PAGE) if "(Defense)" in block)
    return found.lstrip("\n")


@cache
def example():
    """The class that the example defines."""
    names = {"__name__": "strips_of_the_guide"}
    exec(compile(source(), str(PAGE), "exec"), names)
    return names["Strips"]
