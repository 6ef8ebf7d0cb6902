# ruff: noqa: E501
"""Trees and linked lists, in the form of rLLM's LeetCode records: the helpers are the examiner's."""

import pytest

from archer.rewards.code.grade import Ending
from archer.rewards.code.record import read_tests

INVERT = "class Solution:\n    def invert(self, root):\n        if root:\n            root.left, root.right = self.invert(root.right), self.invert(root.left)\n        return root\n"
OWN_NODE = "class TreeNode:\n    def __init__(self, val=0, left=None, right=None):\n        self.val = val\n        self.left = left\n        self.right = right\n"
FLIP = "class Solution:\n    def flip(self, head: Optional[ListNode]) -> Optional[ListNode]:\n        back = None\n        while head: head.next, back, head = back, head, head.next\n        return back\n"


def leetcode(body: str, method: str):
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return read_tests({"functional": f"def check(candidate):\n{lines}\n\ncheck(Solution().{method})"})


INVERTED = leetcode(
    "assert is_same_tree(candidate(root = tree_node([1,2,3,None,4])), tree_node([1,3,2,None,None,4]))",
    "invert",
)
FLIPPED = leetcode(
    "assert is_same_list(candidate(head = list_node([1,2,3])), list_node([3,2,1]))\n"
    "assert is_same_list(candidate(head = list_node([])), list_node([]))",
    "flip",
)


@pytest.mark.parametrize(
    "before",
    [
        "",
        OWN_NODE,
        "from typing import *\n",
        OWN_NODE.replace("class TreeNode:", "class TreeNode:\n    __slots__ = ('val', 'left', 'right')"),
    ],
)
def test_trees_pass_whether_or_not_the_program_defines_the_node(each_box, before):
    verdict = each_box.grade(before + INVERT, INVERTED)
    assert verdict.ending is Ending.PASSED, verdict
    assert (
        each_box.grade(before + INVERT.replace("root.left, root.right =", "_ ="), INVERTED).ending
        is Ending.WRONG
    )


def test_linked_lists_pass(box):
    assert box.grade(FLIP, FLIPPED).ending is Ending.PASSED
    assert box.grade(FLIP.replace("return back", "return head"), FLIPPED).ending is Ending.WRONG


@pytest.mark.parametrize(
    ("body", "program"),
    [
        ("assert candidate(root = tree_node([1,2,3])) == 6", "def f(self, root): return root.val + self.f(root.left) + self.f(root.right) if root else 0"),
        ("assert candidate(root = tree_node([])) is None", "def f(self, root): return root"),
        ("root = tree_node([3,5,1])\nassert candidate(root, root.left, root.right).val == 3", "def f(self, root, p, q): return root if root.left is p and root.right is q else p"),
        ("root = tree_node([1,2,3])\ncandidate(root)\nassert is_same_tree(root, tree_node([1,3,2]))", "def f(self, root): root.left, root.right = root.right, root.left"),
        ("h = list_node([1,2])\nh.next.next = h\nassert candidate(h) is True\nassert candidate(list_node([1])) is False", "def f(self, h):\n        seen = set()\n        while h and h not in seen: seen.add(h); h = h.next\n        return h is not None"),
        ("h = list_node([1,2])\nh.next.next = h\nassert candidate(h).next.next.next.val == 2", "def f(self, h): return h"),
        ("assert [x.val for x in candidate([list_node([1]), list_node([2])])] == [2, 1]", "def f(self, hs): return hs[::-1]"),
        ("assert candidate(TreeNode(1, TreeNode(2))) == TreeNode(2, None, TreeNode(1))", "def f(self, r):\n        l = r.left\n        r.left = None\n        l.right = r\n        return l"),
        ("assert is_same_list(candidate(list_node(range(10000))), list_node(range(9999, -1, -1)))", FLIP.split("\n", 1)[1].replace("flip", "f").strip()),
        ("assert list_values(candidate(list_node([1, null, 2]))) == [1, None, 2]\nassert tree_values(tree_node([1, null, 2])) == [1, None, 2]", "def f(self, h): return h"),
    ],
    ids=["sum", "empty", "ancestor", "in place", "has cycle", "keeps cycle", "several", "equal", "ten thousand", "values"],
)  # fmt: skip
def test_what_leetcode_tests_do_with_nodes(box, body, program):
    verdict = box.grade(f"class Solution:\n    {program}\n", leetcode(body, "f"), memory_mb=512)
    assert verdict.ending is Ending.PASSED, verdict


def test_a_tree_of_ten_thousand_levels_crosses_both_ways(box):
    body = "a = TreeNode(0)\nb = a\nfor n in range(1, 10000):\n    b.left = TreeNode(n)\n    b = b.left\nassert is_same_tree(candidate(a), a)\nassert candidate(a) == a"
    copy = "def f(self, r):\n        top = TreeNode(r.val)\n        at = top\n        while r.left:\n            r = r.left\n            at.left = TreeNode(r.val)\n            at = at.left\n        return top"
    assert box.grade(f"class Solution:\n    {copy}\n", leetcode(body, "f")).ending is Ending.PASSED
    wrong = copy.replace("return top", "at.val = 0; return top")
    assert box.grade(f"class Solution:\n    {wrong}\n", leetcode(body, "f")).ending is Ending.WRONG


@pytest.mark.parametrize("stub", ["None", "root", "[]", "TreeNode(1)", "0", "True"])
def test_stubs_fail(box, stub):
    assert (
        box.grade(f"class Solution:\n    def invert(self, root): return {stub}\n", INVERTED).ending
        is Ending.WRONG
    )


def test_graph_nodes_have_a_class_when_the_program_has_none(box):
    tests = read_tests("a, b = Node(1), Node(2)\na.neighbors, b.neighbors = [b], [a]\nassert reach(a) == 2")
    program = "def reach(n):\n    seen, todo = set(), [n]\n    while todo:\n        x = todo.pop()\n        if x not in seen:\n            seen.add(x)\n            todo += x.neighbors\n    return len(seen)"
    assert box.grade(program, tests).ending is Ending.PASSED
