"""Models and prompts that are odd in any way end in one message before the first step."""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from archer.config import compose
from archer.data.builtin import tiny_reasoner_path
from archer.engines.local.engine import LocalEngine
from archer.errors import ArcherError

ROW = {
    "prompt": [{"role": "user", "content": "1+1="}],
    "data_source": "arithmetic",
    "reward_model": {"style": "rule", "ground_truth": "2"},
}


def start(model: Path, tmp_path: Path, *overrides: str, rows: list[dict] | None = None) -> None:
    """Load everything that a run needs, as `archer train` does before its first step."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows or [ROW]))
    config = compose(
        [
            f"actor_rollout_ref.model.path={model}",
            f"data.train_files={data}",
            f"trainer.default_local_dir={tmp_path / 'run'}",
            *("data.train_batch_size=1", "actor_rollout_ref.actor.ppo_mini_batch_size=1"),
            *("data.max_prompt_length=16", "data.max_response_length=16", "engine.device=cpu"),
            *overrides,
        ]
    )
    with ExitStack() as closing:
        LocalEngine(config).start(None, closing)


@pytest.fixture
def model(tmp_path) -> Path:
    shutil.copytree(tiny_reasoner_path(), tmp_path / "model")
    return tmp_path / "model"


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_weights(model: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


ODD = {
    "config that is not JSON": lambda m: (m / "config.json").write_text("not json"),
    "config that is a list": lambda m: (m / "config.json").write_text("[]"),
    "config that is empty": lambda m: (m / "config.json").write_text(""),
    "config of an unknown model": lambda m: edit(m / "config.json", model_type="nonesuch"),
    "config without a model type": lambda m: edit(m / "config.json", model_type=None),
    "config of an encoder": lambda m: edit(m / "config.json", model_type="t5"),
    "no heads": lambda m: edit(m / "config.json", num_attention_heads=0),
    "heads that divide nothing": lambda m: edit(m / "config.json", num_attention_heads=7),
    "negative size": lambda m: edit(m / "config.json", hidden_size=-4),
    "size that is a text": lambda m: edit(m / "config.json", hidden_size="many"),
    "another number of layers": lambda m: edit(m / "config.json", num_hidden_layers=9),
    "smaller vocabulary": lambda m: edit(m / "config.json", vocab_size=3),
    "few positions": lambda m: edit(m / "config.json", max_position_embeddings=4),
    "untied head that is not there": lambda m: edit(m / "config.json", tie_word_embeddings=False),
    "weights missing": lambda m: (m / "model.safetensors").unlink(),
    "weights empty": lambda m: (m / "model.safetensors").write_bytes(b""),
    "weights garbage": lambda m: (m / "model.safetensors").write_bytes(b"garbage" * 99),
    "tensor missing": lambda m: edit_weights(m, lambda w: w.pop("model.norm.weight")),
    "tensor of another shape": lambda m: edit_weights(
        m, lambda w: w.update({"model.norm.weight": torch.zeros(3)})
    ),
    "weights not finite": lambda m: edit_weights(m, lambda w: w["model.norm.weight"].fill_(torch.nan)),
    "weights too large": lambda m: edit_weights(m, lambda w: [t.fill_(3e38) for t in w.values()]),
    "tokenizer missing": lambda m: [path.unlink() for path in m.glob("tokenizer*")],
    "tokenizer garbage": lambda m: (m / "tokenizer.json").write_text("{}"),
    "tokenizer empty": lambda m: (m / "tokenizer.json").write_text(""),
    "tokenizer settings garbage": lambda m: (m / "tokenizer_config.json").write_text("nope"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_model_is_one_message(model, tmp_path, odd):
    ODD[odd](model)
    with pytest.raises(ArcherError) as raised:
        start(model, tmp_path)
    assert 20 < len(str(raised.value)) < 900
    assert not (tmp_path / "run").exists()


HARMLESS = {
    "huge number of positions": lambda m: edit(m / "config.json", max_position_embeddings=10**12),
    "no generation configuration": lambda m: (m / "generation_config.json").unlink(),
    "end tokens that the model does not have": lambda m: edit(
        m / "generation_config.json", eos_token_id=[10**6]
    ),
}


@pytest.mark.parametrize("odd", HARMLESS)
def test_what_does_no_harm_is_taken(model, tmp_path, odd):
    HARMLESS[odd](model)
    start(model, tmp_path)


TEMPLATES = {
    "raises": "{{ raise_exception('no') }}",
    "is no template": "{% for %}",
    "divides by zero": "{{ 1 // 0 }}",
    "adds text and number": "{{ messages[0]['content'] + 1 }}",
    "leaves everything out": "",
    "renders nothing": "{% if false %}x{% endif %}",
    "names what is not there": "{{ messages[7]['content'] }}",
}


@pytest.mark.parametrize("odd", TEMPLATES)
def test_an_odd_chat_template_is_one_message(model, tmp_path, odd):
    (model / "chat_template.jinja").unlink(missing_ok=True)
    edit(model / "tokenizer_config.json", chat_template=TEMPLATES[odd])
    with pytest.raises(ArcherError, match=r"template|no tokens"):
        start(model, tmp_path)


@pytest.mark.parametrize("content", ["", "\ud800", "\x00", "x" * 5000])
def test_odd_prompts_are_one_message_or_taken(model, tmp_path, content):
    row = ROW | {"prompt": [{"role": "user", "content": content}]}
    with suppress(ArcherError):  # any other error fails
        start(model, tmp_path, rows=[row])
