r"""The prompt around a question: an instruction after it, or a template, and a system message."""

from dataclasses import dataclass

from archer.errors import ArcherError

PRESETS = {
    "boxed": r"Please reason step by step, and put your final answer within \boxed{}.",
    "code-stdin": "Write a Python program that reads the input from stdin and writes the answer to stdout. "
    "Put the whole program in one ```python code block.",
    "code-function": "Write the solution in Python. Put all of it, imports included, in one ```python code "
    "block.",
    "none": "",
}
PLACE = "{question}"


@dataclass(frozen=True)
class PromptStyle:
    """How a question becomes chat messages.

    `instruction` is the name of a preset, a text that follows the question after a blank line, or a template
    with `{question}` in it. None: what the data set itself suggests.
    """

    instruction: str | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        if self.instruction is not None and self.instruction.count(PLACE) > 1:
            raise ArcherError(f"--instruction holds {PLACE} more than once; the question goes in one place.")

    def messages(self, question: str, suggested: str) -> list[dict[str, str]]:
        """The chat messages; `suggested` is the preset to use when the user chose nothing."""
        chosen = suggested if self.instruction is None else self.instruction
        text = PRESETS.get(chosen, chosen)
        if PLACE in text:
            content = text.replace(PLACE, question)
        else:
            content = f"{question}\n\n{text}" if text else question
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": content}]
