import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archer.rewards.extract import (
    boxed_answer,
    extract_answer,
    extract_program,
    final_part,
    last_boxed,
    last_number,
    marked_answer,
)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\frac{a_{1}}{b^{2^{3}}}} }", r"\frac{a_{1}}{b^{2^{3}}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a \\}", r"a \\"),
        (r"\fbox{7}", "7"),
        (r"\boxed 3", "3"),
        (r"$\boxed 3$ and more", "3"),
        (r"\boxed -3.", "-3"),
        (r"\boxed3", "3"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{ 5 }", "5"),
        (r"\boxed{}", ""),
        (r"\boxed{1} and \boxed{2", None),
        (r"\boxed{{1}", None),
        (r"\boxed", None),
        (r"\boxedx{3}", None),
        ("no box", None),
        ("", None),
    ],
)
def test_last_box_is_brace_matched(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{2}", "2"),
        (r"$\boxed{2}$ and $\boxed{3}$.", "2; 3"),
        (r"\boxed{2}, \boxed{3}, and \boxed{4}", "2; 3; 4"),
        (r"\boxed{2}\text{ or }\boxed{3}", r"2 \text{ or } 3"),
        (r"\boxed{2}, \boxed{2}", "2"),
        (r"\boxed{2} so the answer is \boxed{3}", "3"),
        (r"\boxed{2}. \boxed{3}", "3"),
        (r"\boxed{2} \boxed{3}", "3"),
        (r"\boxed 2, \boxed{3}", "3"),
        (r"\boxed{2, \boxed{3}}", "3"),
        (r"\boxed{2} and \boxed{3", None),
        (r"$x=\boxed{3}$ and $y=\boxed{4}$", "x = 3; y = 4"),
        ("$x = \\boxed{3}$\n$y = \\boxed{4}$", "x = 3; y = 4"),
        (r"\begin{align*} x &= \boxed{3} \\ y &= \boxed{4}\end{align*}", "x = 3; y = 4"),
        (r"$x=\boxed{3}$ or $x=\boxed{4}$", r"3 \text{ or } 4"),
        ("$x=\\boxed{3}$\n$x=\\boxed{4}$", "4"),
        (r"$x=\boxed{3}$. So $y=\boxed{4}$", "4"),
        ("none", None),
    ],
)
def test_boxes_joined_by_commas_are_one_list_of_answers(text, answer):
    assert boxed_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 5.", "5"),
        ("The answer is 5. I hope it is correct.", "5"),
        ("the final answer is: $\\frac{1}{2}$.", "$\\frac{1}{2}$"),
        ("Answer: 3.5", "3.5"),
        ("Answer: 3.5.\nDone", "3.5"),
        ("**Answer:** 7", "7"),
        ("**Final Answer**: **7**", "7"),
        ("The answer to the question is 12 apples.", "12 apples"),
        ("The answer is 4. No, the answer is 5.", "5"),
        ("The answer is 5 or 6.", "5 or 6"),
        ("Answer:\n5", "5"),
        ("the answer is\n$$\n5\n$$\nas shown", "5"),
        ("the answer is \\[ 5 \\]", "5"),
        ("9 * 2 = 18\n#### 18", "18"),
        ("#### 1,234\n", "1,234"),
        ("<answer>5</answer>", "5"),
        ("<answer>\n5\n</answer> done", "5"),
        ("### Final Answer\n18", "18"),
        ("#### Final Answer\n\n$18$", "$18$"),
        ("**Final Answer**\n\n18 apples", "18 apples"),
        ("## Answer:\n\\[ 18 \\]", "18"),
        ("### Final Answer\nThere are 18 apples in all of the boxes.", None),
        ("The answer is (B) 18.", "(B) 18"),
        ("The correct option is (B).", "(B)"),
        ("The answer is therefore option B.", "B"),
        ("The answer is 18, which is even.", "18"),
        ("The answer is 18 because 9 and 9 are 18.", "18"),
        ("The answer is $5$, where 5 is $x$.", "$5$"),
        ("The answer is x = 3, y = 4.", "x = 3, y = 4"),
        ("The answer is 3, and 5.", "3, and 5"),
        ("The answer is red, white and blue.", "red, white and blue"),
        ("I cannot answer 5", None),
        ("### 18", None),
        ("Answer:", None),
        ("answers: 5", None),
        ("", None),
    ],
)
def test_an_answer_may_be_marked_in_words(text, answer):
    assert marked_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answers are 3 and 4.", "3 and 4"),
        ("The answer would be 5.", "5"),
        ("Thus, answer C.", "C"),
        ("The answer is $18$!", "$18$"),
        ("The answer is 18?", "18"),
        ("The answer is 18; done", "18"),
        ("The answer is 18; done.", "18"),
        ("The final answer is: 18. Note: answer is in cm: 18", "18"),
        ("The answer is 18. The answer is in cm.", "18"),
        ("The answer is 18. This answer is correct.", "18"),
        ("The answer is 5!", "5!"),
        ("The answer is 5!.", "5!"),
        ("The answer is 18 apples!", "18 apples"),
        ("The answer is **18**!", "18"),
        ("The answer should be 5.", "5"),
        ("The answer must be an integer.", None),
        ("The answer is 18. (The answer must be an integer.)", "18"),
        ("The answer is 3; 4.", "3; 4"),
        ("The answers are x = 3 and x = 4.", "x = 3 and x = 4"),
        ("Thus, the answer would be C.", "C"),
        ("answer a question", None),
        ("I answer C.", None),
        ("It is not answer C", None),
        ("So the answer C", "C"),
        ("The answer is n!", "n!"),
        ("The answer is (n+1)!", "(n+1)!"),
        ("The answer is in (0,1)", "in (0,1)"),
        ("The answer is in cm.", "in cm"),
        ("The answer is x = 3; y = 4.", "x = 3; y = 4"),
        ("The answer turns out to be 7.", "7"),
        ("The answer is \\(18\\)!", "\\(18\\)"),
        ("The answers are 3 and 4, respectively.", "3 and 4"),
        ("The answer is 1/2? Yes.", "1/2"),
        ("The answer will be $5$.", "$5$"),
        ("The answer is 7, as the solutions are 3 and 4.", "7"),
        ("The answer is correct", "correct"),
        ("The answer is **18.**", "18"),
        ("The answer is 4. The answer is not 4.", "not 4"),
        ("The answer equals 12", "12"),
        ("The answer is yes!", "yes"),
        ("The answer is $5!$", "$5!$"),
        ("Answer: 18; the rest follows", "18"),
        ("The answer is $x=1$; it is unique.", "$x=1$"),
        ("The answer is 18. Final answer:", None),
        ("The answer is (2n)!", "(2n)!"),
        ("The answer is 2.5.", "2.5"),
        ("The answer is in meters: 5.", "5"),
        ("The answer is 5 (five).", "5"),
        ("The answer is 5 (since 2 + 3 = 5).", "5"),
        ("Answer: $5$ (see above)", "$5$"),
        ("The answer is 5 (or 6).", "5 (or 6)"),
        ("The answer is 5 (mod 7).", "5 (mod 7)"),
        ("The answer is 12 (base 8).", "12 (base 8)"),
        ("The correct answer is B because it is the largest.", "B"),
        ("The correct choice is (B), since the others are even.", "(B)"),
    ],
)
def test_what_is_said_after_or_about_an_answer_is_no_part_of_it(text, answer):
    assert marked_answer(text) == answer


def test_a_box_goes_before_words_and_words_go_before_the_last_number():
    assert extract_answer(r"\boxed{4}. The answer is 5", last_number_fallback=True) == "4"
    assert extract_answer("The answer is 5, from 3 and 2.", last_number_fallback=True) == "5"
    assert extract_answer("#### 5\nThat was 12 steps.", last_number_fallback=True) == "5"
    assert extract_answer("<think>The answer is 5", last_number_fallback=False) is None
    assert extract_answer("<think>The answer is 5</think>The answer is 6", last_number_fallback=False) == "6"


@pytest.mark.parametrize(
    ("response", "part"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("opened in the prompt</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>never closed", ""),
        ("before<think>never closed", "before"),
        ("<think>a</think>b<think>again", "b"),
    ],
)
def test_thinking_is_no_part_of_the_answer(response, part):
    assert final_part(response) == part


def test_a_box_inside_an_unclosed_think_block_is_no_answer():
    assert extract_answer(r"<think>surely \boxed{5}", last_number_fallback=True) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it is 5", "5"),
        ("it is 5.", "5"),
        ("it is -5.", "-5"),
        ("costs 1,234 in all", "1,234"),
        ("1,234,567.89!", "1,234,567.89"),
        ("first 3, then 0.25.", "0.25"),
        ("a .5 share", ".5"),
        ("7-3", "3"),
        ("7 - 3 = 4", "4"),
        ("x = -3/4", "-3/4"),
        ("some 50% of it", "50%"),
        ("roughly 1e5", "1e5"),
        ("3 1,23", "23"),
        ("none", None),
        ("", None),
        ("٣", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_last_number_is_used_only_when_asked_for_and_when_there_is_no_box():
    assert extract_answer("it is 5", last_number_fallback=False) is None
    assert extract_answer("it is 5", last_number_fallback=True) == "5"
    assert extract_answer(r"\boxed{4} and 5", last_number_fallback=True) == "4"
    assert extract_answer(r"it is 5, \boxed{5", last_number_fallback=True) is None


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from(list("\\{}abx135 $")), max_size=60))
def test_a_balanced_box_at_the_end_is_returned_whatever_stands_before_it(before):
    assert extract_answer(before + r" \boxed{\frac{1}{2}}", last_number_fallback=False) == r"\frac{1}{2}"


def test_extraction_is_linear_in_hostile_text():
    # A quadratic scan of any of these would not end within the suite.
    for hostile in (
        r"\boxed{" * 200_000,
        "{" * 1_000_000,
        "1," * 500_000,
        "<think>" * 200_000,
        "9" * 1_000_000,
        r"\boxed{1}," * 100_000,
        "answer is " * 100_000,
        "answer to " * 100_000,
        "answer" + " " * 1_000_000,
        "#### " * 200_000,
        "the answer is in cm. " * 50_000,
        "answers are x = " * 100_000,
    ):
        assert isinstance(extract_answer(hostile, last_number_fallback=True), str | None)


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
