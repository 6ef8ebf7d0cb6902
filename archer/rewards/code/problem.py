"""The tests of one problem, in the three forms that data sets have."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScriptCase:
    """What a script reads and what it must print."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class ScriptTests:
    """The program is a script: each test is a run of it on an input."""

    cases: tuple[ScriptCase, ...]

    @property
    def count(self) -> int:
        """How many tests there are."""
        return len(self.cases)


@dataclass(frozen=True)
class CallTests:
    """The program defines a function, or a method of `Solution`: each test is a call."""

    function: str
    cases: tuple[str, ...]
    """Each as JSON: `[[argument, ...], expected]`."""
    unwrap: bool = False
    """Whether every expected value stands in a list of its own, as some data sets write them."""

    @property
    def count(self) -> int:
        """How many tests there are."""
        return len(self.cases)


@dataclass(frozen=True)
class AssertTests:
    """Python code with assertions about what the program defines: each assertion is a test."""

    source: str
    count: int
    """How many assertions there are; one in a loop counts once here, and as often as it runs when it does."""
    setup: str = ""
    """Code that both the tests and the program may build on, such as HumanEval's prompt."""
    entry_point: str | None = None
    """The function that `check` in the source is to be called with."""


Tests = ScriptTests | CallTests | AssertTests
