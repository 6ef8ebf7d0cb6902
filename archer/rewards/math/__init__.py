"""Judging a final answer against reference answers, as a mathematician would.

text.py        what may be stripped or respelt without changing an answer
numeric.py     plain numerals as exact rationals
quantity.py    a value with a percent sign, a unit, a currency, a base;  units.py: the units
shapes.py      lists, sets, tuples, intervals, unions, matrices, equations, inequalities
structure.py   reads them, with brackets.py and intervals.py
compare.py     when two structures are the same answer;  scalars.py: when two values are
verdict.py     verdicts that may be left open, and what is asked of an algebra
algebra.py     equality of expressions:  expression.py reads them into tree.py's, evaluate.py evaluates
symbolic.py    math-verify, for what expression.py does not read
verify.py      references, the quick verdict, the task for a worker process
"""

from archer.rewards.math.verify import MathTask, fast_verdict, reference_answers, verify_answer

__all__ = ["MathTask", "fast_verdict", "reference_answers", "verify_answer"]
