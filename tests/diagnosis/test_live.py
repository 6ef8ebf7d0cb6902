"""`trainer.diagnose`: what a run says of itself while it trains."""

import json

from made_up_runs import columns

from archer.diagnosis.rules import RULES
from archer.training.diagnose import LiveDiagnosis

DEAD = columns(actor__lr=[1e-6] * 3 + [0.0] * 5)


def test_each_finding_is_new_once_and_its_metric_follows_the_state():
    live = LiveDiagnosis(None)
    said = [live.step(number, row) for number, row in enumerate([*DEAD, {"actor/lr": 1e-6}], 1)]
    assert [[finding.name for finding in each.new] for each in said] == [
        *[[]] * 5,
        ["dead_learning"],
        *[[]] * 3,
    ]
    assert [each.metrics["diagnose/dead_learning"] for each in said] == [0, 0, 0, 0, 0, 1, 1, 1, 0]
    assert {f"diagnose/{rule.name}" for rule in RULES} < set(said[0].metrics)


def test_a_resumed_run_repeats_nothing_and_forgets_nothing(tmp_path):
    file = tmp_path / "metrics.jsonl"
    whole, first = LiveDiagnosis(None), []
    for number, row in enumerate(DEAD[:6], 1):
        first.append({"step": number, **row, **whole.step(number, row).metrics})
    file.write_text("".join(json.dumps(row) + "\n" for row in first))
    resumed = LiveDiagnosis(None)
    resumed.recall(file, 6)
    after = resumed.step(7, DEAD[6])
    assert after.new == []
    assert after.metrics["diagnose/dead_learning"] == 1
