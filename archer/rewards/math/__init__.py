"""Judging a final answer against reference answers, as a mathematician would.

text.py        what may be stripped or respelt without changing an answer
numeric.py     plain numerals as exact rationals
quantity.py    a value with a percent sign, a unit, a currency, a base;  units.py: the units
structure.py   lists, sets, tuples, intervals, unions, matrices, equations, inequalities
compare.py     when two structures are the same answer; asks an algebra about the values in them
algebra.py     equality of expressions:  expression.py reads them, evaluate.py evaluates them
symbolic.py    math-verify, for what expression.py does not read
verify.py      references, the quick verdict, the task for a worker process
"""

from archer.rewards.math.verify import MathTask, fast_verdict, reference_answers, verify_answer

__all__ = ["MathTask", "fast_verdict", "reference_answers", "verify_answer"]
