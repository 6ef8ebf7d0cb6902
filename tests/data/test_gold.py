"""`archer data check-gold`: the data set's own solutions, judged as responses are."""

import json

import click
import pytest

from archer.cli import app
from archer.data.gold import check_gold, read_gold
from archer.errors import ArcherError

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x: int) -> int:\n    """Twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(4) == 8\n",
}
MBPP = {
    "text": "Write a function to find the height of a tree.",
    "code": "class Node:\n    def __init__(self, v): self.v, self.left = v, None\n"
    "def height(n): return 0 if n is None else 1 + height(n.left)",
    "task_id": 927,
    "test_setup_code": "root = Node(1)\nroot.left = Node(2)",
    "test_list": ["assert height(root) == 2"],
    "challenge_test_list": [],
}
LEETCODE = {
    "problem": "Invert a tree.",
    "solutions": "class Solution:\n    def f(self, root: Optional[TreeNode]):\n"
    "        if root: root.left, root.right = root.right, root.left\n        return root\n",
    "tests": {
        "functional": "def check(candidate):\n    assert is_same_tree(candidate(root = tree_node([1, 2])), "
        "tree_node([1, None, 2]))\n\ncheck(Solution().f)"
    },
}
LEETCODE_DATASET = {
    "task_id": "invert-binary-tree",
    "prompt": "from typing import *\nclass TreeNode:\n    def __init__(self, val=0, left=None, right=None):\n"
    "        self.val, self.left, self.right = val, left, right\n"
    "def tree_node(values):\n    return TreeNode(values[0], *map(TreeNode, values[1:]))\n"
    "def is_same_tree(p, q):\n    if not p or not q: return p is q\n"
    "    return p.val == q.val and is_same_tree(p.left, q.left) and is_same_tree(p.right, q.right)\n",
    "completion": LEETCODE["solutions"],
    "entry_point": "Solution().f",
    "test": "def check(candidate):\n    assert is_same_tree(candidate(root = tree_node([1, 2, 3])), "
    "tree_node([1, 3, 2]))\n",
}
APPS = {
    "question": "Add.",
    "solutions": json.dumps(["print(sum(map(int, input().split())))"]),
    "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
}
GSM8K = {"question": "How many?", "answer": "Three and four is <<3+4=7>>7.\n#### 7"}
MATH = {"problem": "Half of one?", "solution": r"It is \boxed{\frac12}.", "answer": "0.5"}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(*arguments):
    """Run the command, and return its exit status."""
    try:
        return app(["data", "check-gold", *map(str, arguments)], standalone_mode=False) or 0
    except (SystemExit, click.exceptions.Exit) as stop:
        return getattr(stop, "exit_code", None) or getattr(stop, "code", 0)


@pytest.mark.parametrize(
    "row", [HUMANEVAL, MBPP, LEETCODE, LEETCODE_DATASET, APPS, GSM8K, MATH], ids=lambda row: next(iter(row))
)
def test_public_forms_are_judged_as_they_are(tmp_path, row):
    rows = read_gold(write(tmp_path / "gold.jsonl", row), None, None, None)
    assert [each.verdict for each in check_gold(rows, 1, 6.0, lambda done: None)] == ["passed"]


def test_a_program_that_defines_the_helpers_of_a_data_set_does_not_help_itself(tmp_path):
    liar = (
        "def tree_node(values): return 0\ndef is_same_tree(p, q): return True\nclass TreeNode: pass\n"
        "class Solution:\n    def f(self, root): return TreeNode()\n"
    )
    rows = [{**LEETCODE_DATASET, "completion": liar}, {**LEETCODE, "solutions": liar}]
    found = check_gold(
        read_gold(write(tmp_path / "g.jsonl", *rows), None, None, None), 1, 6.0, lambda done: None
    )
    assert [each.verdict for each in found] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("humaneval", HUMANEVAL),
        ("mbpp", MBPP),
        ("leetcode", LEETCODE),
        ("leetcode", {**LEETCODE_DATASET, "problem_description": "Invert a tree."}),
    ],
)
def test_prepared_files_keep_the_solution(tmp_path, name, row, capsys):
    source, prepared = write(tmp_path / "raw.jsonl", row), tmp_path / "prepared.parquet"
    app(["data", "prepare", name, str(source), "--out", str(prepared)], standalone_mode=False)
    assert command(prepared, "--workers", 1) == 0
    assert "1 of 1 solutions passed" in capsys.readouterr().out


def test_what_fails_or_cannot_be_judged_is_listed_with_its_reason(tmp_path, capsys):
    wrong = {**MBPP, "test_list": ["assert height(root) == 3"]}
    helpless = {**MBPP, "test_list": ["assert same_height(height(root), 2)"]}
    silent = {key: value for key, value in MBPP.items() if key != "code"}
    neither = {"text": "no tests", "code": "x = 1"}
    file = write(tmp_path / "mixed.jsonl", MBPP, wrong, helpless, silent, neither)
    out = tmp_path / "out.json"
    assert command(file, "--workers", 1, "--json", out) == 1
    printed = capsys.readouterr().out
    assert "row 1 (line 2): failed: an assertion does not hold" in printed
    assert "row 2 (line 3): failed: NameError" in printed
    assert "row 3 (line 4): cannot be judged: no solution" in printed
    assert "row 4 (line 5): cannot be judged: neither tests nor an answer" in printed
    assert "1 of 5 solutions passed (20.0%), 2 failed, 2 cannot be judged" in printed
    found = json.loads(out.read_text())
    assert (found["rows"], found["passed"], len(found["verdicts"])) == (5, 1, 5)
    assert command(file, "--workers", 1, "--min-pass", 0.2) == 0
    assert command(file, "--workers", 1, "--limit", 1) == 0


def test_the_field_and_the_data_source_can_be_named(tmp_path):
    row = {"text": "t", "mine": "def f(): return 1", "test_list": ["assert f() == 1"]}
    file = write(tmp_path / "own.jsonl", row)
    assert command(file, "--workers", 1) == 1
    assert command(file, "--workers", 1, "--field", "mine", "--data-source", "mbpp") == 0


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ArcherError, match="does not exist"):
        read_gold(tmp_path / "none.jsonl", None, None, None)
    with pytest.raises(ArcherError, match="no rows"):
        read_gold(write(tmp_path / "empty.jsonl"), None, None, None)
