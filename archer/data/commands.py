"""`archer data`: prepare and show."""

from typing import Annotated

import typer
from rich.console import Console

from archer.data.prepare.command import prepare_command

app = typer.Typer(help="Prepare prompt files and look into them.", no_args_is_help=True)
app.command("prepare")(prepare_command)


@app.command()
def show(
    file: Annotated[str, typer.Argument(help="A file in verl's schema, or builtin:arithmetic/train.")],
    n: Annotated[int, typer.Option("--n", min=0, help="How many samples to print.")] = 3,
    index: Annotated[int | None, typer.Option(help="Print this row, counted from 0.")] = None,
    source: Annotated[str | None, typer.Option(help="Only rows of this data_source.")] = None,
    model_path: Annotated[
        str | None,
        typer.Option(help="Count prompts in tokens of this model's tokenizer; otherwise in characters."),
    ] = None,
) -> None:
    """Print samples of a prompt file and its statistics: rows, sources, prompt lengths, kinds of answers."""
    from archer.data.show import ShowRequest
    from archer.data.show import show as print_samples

    request = ShowRequest(file, n, index, source)
    if model_path is None:
        print_samples(
            Console(), request, lambda messages: sum(len(m["content"]) for m in messages), "characters"
        )
        return
    from archer.config.model import ModelConfig
    from archer.engines.local.model import load_tokenizer

    tokenizer = load_tokenizer(ModelConfig(path=model_path))
    print_samples(
        Console(),
        request,
        lambda messages: len(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        ),
        "tokens",
    )
