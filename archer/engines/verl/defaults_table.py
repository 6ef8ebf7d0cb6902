"""The defaults that differ from verl's, as a table in docs/cluster.md.

Written by `python -m archer.engines.verl.defaults_table`.

It is made from both trees: verl's own defaults, and Archer's, or what Archer tells verl where it has no such
setting.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from archer.config.compose import compose
from archer.config.parse import flat, key_names, value_of
from archer.config.root import TrainConfig
from archer.engines.verl.settings import verl_defaults
from archer.engines.verl.translate import translate
from archer.engines.verl.verl_keys import rule_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "cluster.md"
BEGIN, END = "<!-- defaults: begin -->\n", "<!-- defaults: end -->\n"
OF_THE_RUN = (
    "*.archer.*",  # Archer's own configuration, carried along
    "*.model.path",
    "*.tokenizer_path",
    "data.*_files",
    "trainer.default_local_dir",
    "*_implementation",  # flash-attention and packed batches, where it is installed
    "*.use_remove_padding",
)
"""Settings that depend on the run or the machine."""


def rows() -> Iterator[tuple[str, str, str]]:
    """(name, verl's default, Archer's) of every setting that a user may give and in which the two differ."""
    base = verl_defaults()
    stock: Any = OmegaConf.to_container(base, resolve=False)
    theirs = flat(stock)
    config = compose(["engine=verl", "engine.device=cuda", "recipe=base", *_model()])
    told = flat(translate(config, base))
    own = {key: value_of(config, key) for key in key_names(TrainConfig) if key in theirs}
    for key in sorted({*told, *own}):
        rule = None if key in own else rule_of(key)
        of_the_run = any(fnmatchcase(key, pattern) for pattern in OF_THE_RUN)
        if of_the_run or (rule is not None and rule.kind == "refused"):
            continue
        default, ours = _shown(theirs.get(key)), _shown(own.get(key, told.get(key)))
        if default != ours:
            yield key, default, ours


def _model() -> list[str]:
    return [
        "actor_rollout_ref.model.path=builtin:tiny_reasoner",
        "data.train_files=[builtin:arithmetic/train]",
    ]


def _shown(value: Any) -> str:
    if value in (None, "???"):
        return "-"
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # 1 and 1.0 are one
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).replace("'", "").replace("|", "\\|")
    return f"`{text}`"


def written(document: str) -> str:
    """Return the document with its table made anew."""
    lines = ["| setting | verl | Archer |", "|---|---|---|"]
    lines += [f"| `{key}` | {theirs} | {ours} |" for key, theirs, ours in rows()]
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
    print(f"wrote {DOCUMENT}")
