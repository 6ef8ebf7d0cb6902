"""What a program and its tests find defined: the names of online judges, and the nodes of trees and lists.

The same names exist twice, once in the program's process and once in the examiner's. Tests use the latter:
whatever a program defines under these names, tests never call it. The nodes are LeetCode's, and the helpers
those that rLLM's records call: `tree_node([1, None, 2])`, `is_same_list(...)`.
"""

import builtins
import importlib
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

_OPEN_MODULES = (
    "bisect collections copy dataclasses datetime decimal fractions functools heapq itertools math operator "
    "random statistics string typing"
)
_CLOSED_MODULES = "abc array cmath enum io json os re sys time"


class TreeNode:
    """A node of a binary tree."""

    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


class ListNode:
    """A node of a linked list."""

    def __init__(self, val: Any = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class Node:
    """LeetCode's other node: of a graph, of a tree with any number of children, of a list with more links."""

    def __init__(self, val: Any = 0, *links: Any, **named: Any) -> None:
        """Take `children` or `neighbors`, or `left, right, next`, or `next, random`, by order or by name."""
        self.val, self.left, self.right, self.next, self.random = val, None, None, None, None
        self.children: list[Any] = []
        self.neighbors: list[Any] = []
        if len(links) == 1 and isinstance(links[0], list):
            self.children = self.neighbors = links[0]
        else:
            names = ("left", "right", "next") if len(links) != 2 else ("left", "right")
            vars(self).update(zip(names, links, strict=False))
        vars(self).update(named)


def tree_node(values: Iterable[Any] | None) -> Any:
    """Build the tree that LeetCode writes as a list, level by level, None for a missing child."""
    values = list(values or [])
    if not values or values[0] is None:
        return None
    root = TreeNode(values[0])
    open_nodes, rest = deque([root]), iter(values[1:])
    while open_nodes:
        parent = open_nodes.popleft()
        for side in ("left", "right"):
            value = next(rest, None)
            if value is not None:
                setattr(parent, side, TreeNode(value))
                open_nodes.append(getattr(parent, side))
    return root


def list_node(values: Iterable[Any] | None) -> Any:
    """Build a linked list of these values."""
    head = None
    for value in reversed(list(values or [])):
        head = ListNode(value, head)
    return head


def is_same_tree(one: Any, other: Any) -> bool:
    """Compare two trees, node by node, however deep and even if they loop."""
    return same_nodes(one, other, ("left", "right"))


def is_same_list(one: Any, other: Any) -> bool:
    """Compare two linked lists, node by node, however long and even if they loop."""
    return same_nodes(one, other, ("next",))


def same_nodes(one: Any, other: Any, links: tuple[str, ...]) -> bool:
    """Compare what can be reached by `links`, with values compared as plain data."""
    pairs, seen = [(one, other)], set()
    while pairs:
        left, right = pairs.pop()
        if left is None or right is None:
            if left is not right:
                return False
            continue
        if (id(left), id(right)) in seen:
            continue
        seen.add((id(left), id(right)))
        if not bool(left.val == right.val):
            return False
        pairs += [(getattr(left, link, None), getattr(right, link, None)) for link in links]
    return True


def compare_nodes_by_value() -> None:
    """Make nodes equal that hold the same, in this process: as tests mean it. Programs tell them apart."""
    TreeNode.__eq__ = _equal(TreeNode, is_same_tree)  # type: ignore[method-assign]
    ListNode.__eq__ = _equal(ListNode, is_same_list)  # type: ignore[method-assign]


def _equal(kind: type, same: Callable[[Any, Any], bool]) -> Any:
    return lambda one, other: type(other) is kind and same(one, other)


def tree_values(root: Any) -> list[Any]:
    """Return the list that LeetCode writes for a tree."""
    values, open_nodes = [], deque([root])
    while open_nodes:
        node = open_nodes.popleft()
        values.append(None if node is None else node.val)
        if node is not None:
            open_nodes += (node.left, node.right)
    while values and values[-1] is None:
        values.pop()
    return values


def list_values(head: Any) -> list[Any]:
    """Return the values of a linked list, up to where it ends or loops."""
    values, seen = [], set()
    while head is not None and id(head) not in seen:
        seen.add(id(head))
        values.append(head.val)
        head = head.next
    return values


def _library_names() -> dict[str, Any]:
    modules = {name: importlib.import_module(name) for name in f"{_OPEN_MODULES} {_CLOSED_MODULES}".split()}
    names: dict[str, Any] = {}
    for module in (modules[name] for name in _OPEN_MODULES.split()):
        public = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
        for name in public:
            if not hasattr(builtins, name):  # math.pow is no replacement for pow
                names.setdefault(name, getattr(module, name))
    return {**names, **modules, "inf": math.inf}


_HELPERS: dict[str, Any] = {
    "TreeNode": TreeNode,
    "ListNode": ListNode,
    "Node": Node,
    **{
        each.__name__: each
        for each in (tree_node, list_node, is_same_tree, is_same_list, tree_values, list_values)
    },
    "null": None,
    "true": True,
    "false": False,
}
LIBRARY = _library_names()
FOR_PROGRAMS: dict[str, Any] = {**LIBRARY, **_HELPERS}
FOR_TESTS = FOR_PROGRAMS
SHARED: dict[str, type] = {"TreeNode": TreeNode, "ListNode": ListNode, "Node": Node}
"""Classes that both processes have: their objects are sent by what they hold."""
