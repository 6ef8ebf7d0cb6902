"""transformers' Trainer: scores towards a validation set, and towards a contrast, against the oracle."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from archer.data.builtin import tiny_reasoner_path
from archer.errors import ArcherError
from archer.influence import InfluenceConfig, Layout, TargetTracer
from archer.influence.groups import Group
from archer.influence.oracle import brute_force_scores, explicit_gradients, position_factors
from archer.integrations.trainer import TokenTracing, TracingTrainer
from archer.trace.check import check_trace
from archer.trace.reader import TraceReader

TEXTS = ["3+5=8", "12+34=46", "100+250=350", "77+8=85", "9+9=19", "21+4=25", "60+7=67", "5+5=11"]
CONFIG = InfluenceConfig(
    enable=True, reg_rule="kernel_trace", module_name_filter=("v_proj", "o_proj"), projection_dim_factor=16
)


class Sums(Dataset):
    """What stands after `=` is learnt; every second example is `accepted`, two in a row have one uid."""

    def __init__(self, texts: list[str]) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tiny_reasoner_path())
        self.rows = []
        for number, text in enumerate(texts):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            first = text.index("=") + 1
            labels = [-100] * first + ids[first:]
            self.rows.append(
                {"input_ids": ids, "labels": labels, "uid": number // 2, "accepted": number % 2 == 0}
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict:
        return self.rows[number]


def collate(rows: list[dict]) -> dict:
    width = max(len(row["input_ids"]) for row in rows)

    def padded(name: str, fill: int) -> torch.Tensor:
        return torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])

    return {
        "input_ids": padded("input_ids", 0),
        "labels": padded("labels", -100),
        "attention_mask": torch.tensor(
            [[int(i < len(row["input_ids"])) for i in range(width)] for row in rows]
        ),
        "uid": [row["uid"] for row in rows],
        "accepted": [row["accepted"] for row in rows],
    }


class WithoutColumns:
    """The collator of a trainer that is given a target."""

    def __call__(self, rows: list[dict]) -> dict:
        batch = collate(rows)
        return {name: batch[name] for name in ("input_ids", "labels", "attention_mask")}


def trainer(
    folder: Path, archer: TokenTracing | None, kind=TracingTrainer, collator=None, **changes
) -> Trainer:
    model = AutoModelForCausalLM.from_pretrained(tiny_reasoner_path(), dtype=torch.float32)
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "max_steps": 1,
        "learning_rate": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",
    }
    plain = archer is None or archer.target is not None
    options = {} if archer is None else {"archer": archer}
    tokenizer = changes.pop("processing_class", AutoTokenizer.from_pretrained(tiny_reasoner_path()))
    made = kind(
        model=model,
        args=TrainingArguments(**{**settings, **changes}),
        train_dataset=Sums(TEXTS),
        data_collator=collator or (WithoutColumns() if plain else collate),
        processing_class=tokenizer,
        **options,
    )
    made.train()
    return made


def whole_batch(texts: list[str]) -> dict:
    return WithoutColumns()(Sums(texts).rows)


def brute_force(model, target: list[str]) -> dict[int, torch.Tensor]:
    """Oracle gradients of the two losses, G* and H by explicit sums."""
    modules = TargetTracer(model, CONFIG).modules
    held_out, training = whole_batch(target), whole_batch(TEXTS)
    factors = position_factors(modules, lambda: model(**held_out).loss)
    everywhere = Layout.from_mask(held_out["attention_mask"].bool())
    goal = explicit_gradients(modules, factors, everywhere)
    factors = position_factors(modules, lambda: model(**training).loss)
    gradients = explicit_gradients(modules, factors, Layout.from_labels(training["labels"]))
    scores = {row: torch.zeros(len(found[0])) for row, found in gradients.items()}
    for m in range(len(modules)):
        G = torch.stack([gradients[row][m].mean(0) for row in gradients]).double()
        H = G.T @ G
        H += 0.1 * torch.trace(H) / len(G) * torch.eye(len(H))
        q = torch.linalg.solve(H, sum(found[m].sum(0) for found in goal.values()).double())
        for row, found in gradients.items():
            scores[row] += (found[m].double() @ q).float()
    return scores


def assert_trace_holds(folder: Path, scores: dict[int, torch.Tensor]) -> None:
    trace = TraceReader(folder / "influence_trace").read(1).arrays
    assert not check_trace(folder / "influence_trace").problems
    largest = max(float(line.abs().max()) for line in scores.values())
    assert sorted(scores) == trace.response_index.tolist()
    for place, row in enumerate(trace.response_index):
        found = trace.influence[place][trace.response_mask[place]]
        assert np.abs(found - scores[int(row)].numpy()).max() < 1e-4 * largest


def test_tokens_are_scored_by_what_they_do_to_the_validation_loss(tmp_path):
    target = ["4+4=8", "30+3=33", "200+11=211", "8+1=9"]
    made = trainer(tmp_path, TokenTracing(target=Sums(target).rows, influence=CONFIG))
    assert_trace_holds(tmp_path, brute_force(made.model, target))
    trace = TraceReader(tmp_path / "influence_trace").read(1).arrays
    text = AutoTokenizer.from_pretrained(tiny_reasoner_path()).decode(
        trace.responses[1][trace.response_mask[1]]
    )
    assert text.replace(" ", "") == "46"
    logits = made.model(**whole_batch(TEXTS)).logits.log_softmax(-1)
    first = logits[0, 3, trace.responses[0, 0]]
    assert trace.log_probs[0, 0] == pytest.approx(float(first), abs=2e-3)
    assert trace.unjudged.all()


def test_responses_of_a_uid_are_compared(tmp_path):
    options = TokenTracing(uid_column="uid", accepted_column="accepted", influence=CONFIG)
    model = trainer(tmp_path, options).model
    modules = TargetTracer(model, CONFIG).modules
    batch = whole_batch(TEXTS)
    factors = position_factors(modules, lambda: model(**batch).loss)
    gradients = explicit_gradients(modules, factors, Layout.from_labels(batch["labels"]))
    scores = {}
    for pair in range(4):
        group = Group(str(pair), (2 * pair, 2 * pair + 1), (True, False))
        scores |= brute_force_scores(gradients, group, CONFIG)
    assert_trace_holds(tmp_path, {row: line.float() for row, line in scores.items()})


def test_training_is_what_it_was_and_only_the_chosen_steps_are_traced(tmp_path):
    lively = {"max_steps": 4, "learning_rate": 1e-3}
    options = TokenTracing(target=Sums(["4+4=8"]).rows, influence=CONFIG, every=2)
    traced = trainer(tmp_path / "traced", options, **lively)
    plain = trainer(tmp_path / "plain", None, Trainer, **lively)
    for mine, theirs in zip(traced.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert [e.step for e in TraceReader(tmp_path / "traced/influence_trace").entries] == [2, 4]
    logged = [line for line in traced.state.log_history if "influence_trace/selected_responses" in line]
    assert [line["step"] for line in logged] == [2, 4]
    summary = json.loads((tmp_path / "traced/influence_trace/summary.json").read_text())
    assert summary["metadata"]["target"] == "1 examples"


def test_a_run_that_resumes_keeps_the_steps_before_and_one_that_begins_anew_does_not(tmp_path):
    options = TokenTracing(target=Sums(["4+4=8"]).rows, influence=CONFIG)
    lively = {"learning_rate": 1e-3, "gradient_accumulation_steps": 1}
    saved = trainer(tmp_path, options, max_steps=2, save_strategy="steps", save_steps=1, **lively)

    def steps() -> list[int]:
        return [entry.step for entry in TraceReader(tmp_path / "influence_trace").entries]

    for at, expected in [(2, [1, 2, 3]), (1, [1, 2])]:
        saved.args.max_steps = expected[-1]
        saved.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
        assert steps() == expected
    saved.args.max_steps = 1
    saved.train()
    assert steps() == [1]


def test_a_target_or_a_contrast_is_wanted():
    with pytest.raises(ArcherError, match="needs a target"):
        TokenTracing()


def test_examples_without_labels_are_neither_scored_nor_aimed_at(tmp_path):
    """Such as truncation leaves. The mean loss of a batch of them is no number."""

    class Cut(WithoutColumns):
        def __call__(self, rows: list[dict]) -> dict:
            batch = super().__call__(rows)
            batch["labels"][[row["uid"] == 1 for row in rows]] = -100
            return batch

    target = Sums(["4+4=8", "30+3=33", "200+11=211", "8+1=9"]).rows  # the last two are of uid 1
    options = TokenTracing(target=target, influence=CONFIG)
    args = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "max_steps": 3}
    trainer(tmp_path, options, collator=Cut(), per_device_eval_batch_size=2, **args)
    reader = TraceReader(tmp_path / "influence_trace")
    assert [entry.step for entry in reader.entries] == [1, 3]
    trace = reader.read(3).arrays
    assert np.isfinite(trace.influence[trace.response_mask]).all()


def test_a_target_without_labels_is_refused(tmp_path):
    class Blank(WithoutColumns):
        def __call__(self, rows: list[dict]) -> dict:
            batch = super().__call__(rows)
            return {**batch, "labels": torch.full_like(batch["labels"], -100)}

    options = TokenTracing(target=Sums(["4+4=8"]).rows, influence=CONFIG)
    with pytest.raises(ArcherError, match="no target example has a label"):
        trainer(tmp_path, options, collator=Blank())


def test_the_collators_tokenizer_will_do_and_a_trainer_without_any_is_refused(tmp_path):
    class Knowing(WithoutColumns):
        tokenizer = AutoTokenizer.from_pretrained(tiny_reasoner_path())

    options = TokenTracing(target=Sums(["4+4=8"]).rows, influence=CONFIG)
    trainer(tmp_path, options, collator=Knowing(), processing_class=None)
    assert TraceReader(tmp_path / "influence_trace").vocab is not None
    with pytest.raises(ArcherError, match="give the trainer processing_class=tokenizer"):
        trainer(tmp_path, options, processing_class=None)


def test_a_model_is_never_given_the_columns_of_a_contrast(tmp_path):
    """Nor in an evaluation, nor in a step that is not traced."""
    seen = set()

    class Watching(TracingTrainer):
        def __init__(self, *args, model, **options):
            model.register_forward_pre_hook(lambda _, __, given: seen.update(given), with_kwargs=True)
            super().__init__(*args, model=model, eval_dataset=Sums(TEXTS), **options)

    options = TokenTracing(uid_column="uid", accepted_column="accepted", influence=CONFIG, every=2)
    trainer(tmp_path, options, kind=Watching, max_steps=2, eval_strategy="steps", eval_steps=1)
    assert {"input_ids", "labels"} <= seen and not seen & {"uid", "accepted"}


SMALL = {"vocab_size": 30, "pad_token_id": 0}
BERT = transformers.BertConfig(
    **SMALL, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformers.BertForMaskedLM(BERT),
        lambda: transformers.BertForSequenceClassification(BERT),
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(**SMALL, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
        ),
    ],
    ids=["masked", "classifier", "encoder-decoder"],
)
def test_a_model_whose_labels_are_not_the_next_tokens_is_refused(make, tmp_path):
    args = TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(ArcherError, match="does not learn to emit the next token"):
        TracingTrainer(make(), args, archer=TokenTracing(target=Sums(["4+4=8"]).rows))


def test_a_batch_without_labels_is_refused_by_name(tmp_path):
    class Nothing(WithoutColumns):
        def __call__(self, rows: list[dict]) -> dict:
            return {"input_ids": super().__call__(rows)["input_ids"]}

    options = TokenTracing(target=Sums(["4+4=8"]).rows, influence=CONFIG)
    with pytest.raises(ArcherError, match="the batch has no 'labels', only input_ids"):
        trainer(tmp_path, options, collator=Nothing())


def test_columns_that_the_batch_lacks_are_named(tmp_path):
    options = TokenTracing(uid_column="prompt_id", accepted_column="accepted", influence=CONFIG)
    with pytest.raises(ArcherError, match="the batch has no 'prompt_id', only input_ids"):
        trainer(tmp_path, options)
