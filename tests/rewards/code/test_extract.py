import pytest

from archer.rewards.code.extract import extract_program

PYTHON = "```python\nprint(1)\n```"


@pytest.mark.parametrize(
    ("response", "program"),
    [
        (PYTHON, "print(1)\n"),
        (f"Here:\n{PYTHON}\nThat is it.", "print(1)\n"),
        ("```python\nprint(1)\n```\nbetter:\n```python\nprint(2)\n```", "print(2)\n"),
        ("```py\nprint(1)\n```", "print(1)\n"),
        ("```Python3\nprint(1)\n```", "print(1)\n"),
        ("``` python\nprint(1)\n```", "print(1)\n"),
        ("```python title='a.py'\nprint(1)\n```", "print(1)\n"),
        ("~~~python\nprint(1)\n~~~", "print(1)\n"),
        ("````python\nprint('''\n```\n''')\n````", "print('''\n```\n''')\n"),
        ("1. First\n   ```python\n   if x:\n       y()\n   ```", "if x:\n    y()\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        (f"{PYTHON}\nIt prints:\n```\n1\n```", "print(1)\n"),
        (f"{PYTHON}\nIt prints:\n```text\n1\n```", "print(1)\n"),
        (f"{PYTHON}\n```bash\npython a.py\n```", "print(1)\n"),
        (f"{PYTHON}\n```text\ncut off", "print(1)\n"),
        ("```python\r\nprint(1)\r\n```", "print(1)\r\n"),
    ],
)
def test_the_last_block_of_python_is_the_program(response, program):
    assert extract_program(response) == program


@pytest.mark.parametrize(
    "response",
    [
        "",
        "print(1)",
        "`print(1)`",
        "```python\nprint(1)",
        f"{PYTHON}\nbetter:\n```python\nprint(2)",
        "```python\n```",
        "```python\n   \n```",
        "```javascript\nconsole.log(1)\n```",
        "```python print(1)```",
    ],
)
def test_a_response_without_a_closed_block_of_python_has_no_program(response):
    assert extract_program(response) is None


@pytest.mark.parametrize(
    ("response", "program"),
    [
        (f"<think>\n{PYTHON}\n", None),
        (f"<think>\n{PYTHON}\n</think>\nno code", None),
        (f"{PYTHON}\n</think>\nno code", None),
        (f"<think>\n```python\nprint(0)\n```\n</think>\n{PYTHON}", "print(1)\n"),
        (f"<think>\n```python\nprint(0\n</think>\n{PYTHON}", "print(1)\n"),
        (f"</think>{PYTHON}", "print(1)\n"),
        (f"{PYTHON}\n<think>again\n```python\nprint(2)\n```", "print(1)\n"),
    ],
)
def test_thinking_is_no_answer(response, program):
    assert extract_program(response) == program


def test_a_hundred_thousand_fences_are_read_in_one_pass():
    assert extract_program("```\n" * 100_001) is None
    assert extract_program("`" * 1_000_000) is None
