"""What is printed stands there as it is: rich would make an emoji of `my.py:three:`."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "archer"


def test_no_console_makes_emoji_of_names():
    calls = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}": {option.arg for option in node.keywords}
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
    }
    assert calls
    assert not [place for place, options in calls.items() if "emoji" not in options]
