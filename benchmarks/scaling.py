"""What a step costs at sizes that were not run, from the estimates of the code, checked against what was.

    python benchmarks/scaling.py             # the tables of docs/scaling.md; --write puts them there
    python benchmarks/scaling.py --measure   # bytes of factors and scoring time on this machine's CPU

Bytes come from `archer.influence.costs` and `archer.preflight`, which the dry run uses, too. Floating-point
operations of a token at context s, forward and backward, without and with gradient checkpointing:

    6 P + 6 L q s     8 P + 8 L q s        (P parameters, L layers, q width of the queries; causal attention)

Seconds are operations over the rate that the measured updates reached; they hold as far as that rate does.
A decoding step of a replica of p GPUs takes a fixed time a layer and that of reading weights and cache once:

    0.125 ms L + (2 P + rows x context x 4 L kv) / (p x 4.8 TB/s)     (kv width of keys; all bfloat16)
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from qwen_shape import qwen_0_5b, qwen_1_5b
from transformers import Qwen2Config, Qwen2ForCausalLM

from archer.config import compose
from archer.config.root import TrainConfig
from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout
from archer.influence.costs import bytes_per_token
from archer.influence.modules import traced_modules
from archer.preflight.machine import checkpoint_bytes, trace_bytes
from archer.preflight.memory import CHUNK, GIB, cache_bytes, influence_bytes, verl_demand
from archer.preflight.model import ModelFacts, shape_of

DOCUMENT = Path(__file__).parents[1] / "docs" / "scaling.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
DEVICE = 139 * GIB  # of an H200
PEAK = 989e12  # its bfloat16 operations a second, dense
RATE = 300e12  # what an update reached of it, between the measured 284 and 397
BANDWIDTH = 4.8e12  # bytes a second from its memory
LAYER = 0.125e-3  # seconds of a decoding step that are no reading, a layer: from the first measured point
INFLUENCE = 0.04  # of an update; its operations are fewer, the rest is launches
TRACING = 0.6 / (1024 * 8192)  # seconds of the driver a token, both traces, padding included
PROMPT, RESPONSE, GROUPS, GROUP = 1024, 32 * 1024, 64, 16
DEVICES = (8, 16, 32, 64, 128, 512)


def _large(hidden: int, inner: int, layers: int, heads: int, key_values: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=152064,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_values,
        tie_word_embeddings=False,
    )


SHAPES = {
    "0.5B": qwen_0_5b,
    "1.5B": qwen_1_5b,
    "7B": lambda: _large(3584, 18944, 28, 28, 4),
    "70B": lambda: _large(8192, 29568, 80, 64, 8),
}
"""Qwen2.5's; 70B is the shape of its 72B."""


@cache
def facts_of(name: str) -> ModelFacts:
    """A model without its weights."""
    config = SHAPES[name]()
    with torch.device("meta"):
        skeleton = Qwen2ForCausalLM(config)
    return ModelFacts(name, config, skeleton, shape_of(config, skeleton))


@cache
def settings(devices: int, *more: str) -> TrainConfig:
    """A step of 1,024 responses of 32k tokens with both traces, on so many devices."""
    return compose(
        [
            "recipe=base",
            "engine=verl",
            "actor_rollout_ref.model.path=any",
            "data.train_files=any.jsonl",
            f"data.train_batch_size={GROUPS}",
            f"actor_rollout_ref.rollout.n={GROUP}",
            f"data.max_prompt_length={PROMPT}",
            f"data.max_response_length={RESPONSE}",
            "actor_rollout_ref.model.enable_gradient_checkpointing=True",
            "trainer.entropy_trace.enable=True",
            "trainer.influence_trace.enable=True",
            "trainer.influence_trace.output_function=log_prob",
            f"trainer.nnodes={max(1, devices // 8)}",
            f"trainer.n_gpus_per_node={min(8, devices)}",
            *more,
        ]
    )


def operations(name: str, context: int, checkpointing: bool) -> float:
    """Of a token in an update: (6 or 8) (P + L q s)."""
    shape = facts_of(name).shape
    return (8 if checkpointing else 6) * (shape.parameters + shape.layers * shape.query * context)


def factor_bytes(name: str) -> int:
    """Captured of a token, bfloat16."""
    return bytes_per_token(modules_of(name), torch.bfloat16)


@cache
def modules_of(name: str) -> list[Any]:
    """The traced modules with the default projection."""
    return traced_modules(facts_of(name).skeleton, InfluenceConfig(enable=True))


def exchanged_bytes(modules: list[Any], responses: int) -> int:
    """Of a group that crosses ranks: R x D float32 of all modules, whatever the length of its responses."""
    return 4 * responses * sum(module.dim for module in modules)


def capture_operations(name: str) -> int:
    """Of a token: its projections, its part of G_r, its score: 2 (d_in k_in + d_out k_out) + 4 k_in k_out."""
    shared = {id(m.project_in): m.project_in.d * m.k_in for m in modules_of(name)}
    return 2 * sum(shared.values()) + sum(2 * m.project_out.d * m.k_out + 4 * m.dim for m in modules_of(name))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def gb(size: float) -> str:
    """GiB, three figures."""
    return f"{size / GIB:.3g} GiB"


def per_token() -> str:
    """Each phase at one token."""
    rows = []
    for name in SHAPES:
        short, long = operations(name, 1024, True), operations(name, PROMPT + RESPONSE, True)
        extra = capture_operations(name) / operations(name, 1024, False)
        cells = (short / 1e9, long / 1e9)
        rows.append(
            (
                name,
                f"{facts_of(name).shape.parameters / 1e9:.2f}",
                *(f"{cell:.3g}" for cell in cells),
                f"{short / RATE * 1e6:.3g} / {long / RATE * 1e6:.3g} µs",
                f"{extra:.1%}",
                f"{factor_bytes(name) / 1024:.1f} KiB",
                f"{exchanged_bytes(modules_of(name), GROUP) / 2**20:.0f} MiB",
            )
        )
    head = ("shape", "P, 10^9", "GFLOP, 1k", "GFLOP, 33k", "update, 1k / 33k")
    return table((*head, "influence's operations", "captured", "exchanged, a crossing group"), rows)


def per_step() -> str:
    """A step of 1,024 x 32k tokens, whatever the number of devices."""
    tokens = GROUPS * GROUP * RESPONSE
    rows = []
    for name in ("7B", "70B"):
        rows.append(
            (
                name,
                gb(tokens * factor_bytes(name)),
                gb(GROUPS * exchanged_bytes(modules_of(name), GROUP)),
                gb(trace_bytes(settings(8), 1)),
                gb(checkpoint_bytes(facts_of(name).shape, "verl")),
            )
        )
    head = ("shape", "captured, all ranks", "exchanged, if every group crosses", "written, both traces")
    return table((*head, "a checkpoint"), rows)


def parallel(name: str) -> int:
    """GPUs of a replica that generates."""
    return 2 if name == "7B" else 8


def per_device() -> str:
    """Memory of a rank, by the number of devices."""
    rows = []
    for name in ("7B", "70B"):
        replica = f"actor_rollout_ref.rollout.tensor_model_parallel_size={parallel(name)}"
        for devices in DEVICES:
            demand = verl_demand(settings(devices, replica), facts_of(name), DEVICE)
            updating = {part.name: part.bytes for part in demand.parts if part.updating}
            state = sum(updating[part] for part in ("weights", "gradients", "optimizer"))
            rows.append(
                (
                    name,
                    str(devices),
                    gb(state),
                    gb(updating["activations"]),
                    gb(updating["one layer or the logits"]),
                    gb(updating["influence"]),
                    gb(sum(updating.values())) + (" **over**" if demand.peak > DEVICE else ""),
                )
            )
    head = ("shape", "GPUs", "state", "activations", "logits", "influence", "update in all")
    return table(head, rows)


@dataclass(frozen=True)
class Decoding:
    """Responses of one length that one replica generates, `rows` of them at a time."""

    shape: str
    responses: float
    prompt: int
    length: int
    rows: float
    gpus: int = 1

    @property
    def reading(self) -> float:
        """Seconds of reading weights and cache, the latter at half the length on average."""
        context = self.prompt + self.length / 2
        cache = self.responses * self.length * cache_bytes(facts_of(self.shape).shape, 1, 1, 2) * context
        weights = self.steps * 2 * facts_of(self.shape).shape.parameters
        return (cache + weights) / (self.gpus * BANDWIDTH)

    @property
    def steps(self) -> float:
        """Decoding steps, one after the other."""
        return max(1.0, self.responses / self.rows) * self.length

    @property
    def seconds(self) -> float:
        """In all."""
        return self.reading + self.steps * LAYER * facts_of(self.shape).shape.layers


def generation(name: str, devices: int) -> Decoding:
    """A replica's share of the step; its cache holds so many responses at their full length."""
    gpus = parallel(name)
    share = settings(devices).actor_rollout_ref.rollout.gpu_memory_utilization
    room = share * DEVICE * gpus - 2 * facts_of(name).shape.parameters
    rows = room // cache_bytes(facts_of(name).shape, 1, PROMPT + RESPONSE, 2)
    return Decoding(name, GROUPS * GROUP * gpus / devices, PROMPT, RESPONSE, rows, gpus)


def per_phase() -> str:
    """Seconds of each phase, by the number of devices."""
    rows = []
    tokens = GROUPS * GROUP * (PROMPT + RESPONSE)
    for name in ("7B", "70B"):
        for devices in DEVICES:
            decoding = generation(name, devices)
            update = tokens * operations(name, PROMPT + RESPONSE, True) / RATE / devices
            cells = (decoding.seconds, update / 4, update, INFLUENCE * update)
            rows.append(
                (
                    name,
                    str(devices),
                    f"{min(decoding.rows, decoding.responses):,.0f} of {decoding.responses:,.0f}",
                    *(f"{seconds:,.0f} s" for seconds in cells),
                    f"{tokens * TRACING:.1f} s",
                )
            )
    head = ("shape", "GPUs", "rows of a replica at once", "generation", "old log-probs", "update")
    return table((*head, "influence", "traces, driver"), rows)


@dataclass(frozen=True)
class Update:
    """A measured update of docs/benchmarks.md."""

    what: str
    shape: str
    tokens: int
    context: int
    checkpointing: bool
    seconds: float

    @property
    def rate(self) -> float:
        """Operations a second that it reached."""
        return self.tokens * operations(self.shape, self.context, self.checkpointing) / self.seconds


MEASURED = (
    Update("local, packed, fused", "0.5B", 96_913, 381, False, 0.735),
    Update("local, padded", "1.5B", 64 * 1024, 1024, False, 2.20),
    Update("local, padded, checkpointing", "1.5B", 64 * 1024, 1024, True, 2.60),
    Update("verl, padded", "1.5B", 64 * 1024, 1024, False, 1.92),
    Update("verl, padded", "1.5B", 256 * 2048, 2048, False, 15.6),
)


def checked_rates() -> str:
    """Measured updates against their operations at one rate."""
    rows = []
    for point in MEASURED:
        predicted = point.seconds * point.rate / RATE
        rows.append(
            (
                f"{point.what}, {point.shape}, {point.tokens:,} tokens of {point.context:,}",
                f"{point.seconds} s",
                f"{predicted:.3g} s",
                f"{predicted / point.seconds:.2f}",
                f"{point.rate / 1e12:.0f} TFLOP/s, {point.rate / PEAK:.0%}",
            )
        )
    return table(("update, H200", "measured", f"at {RATE / 1e12:.0f} TFLOP/s", "ratio", "its rate"), rows)


GENERATED = (
    ("decoding.py, 512 steps", Decoding("0.5B", 256, 100, 512, 256), 512 * 3.44e-3),
    ("a GSM8K step, built-in decoder", Decoding("0.5B", 256, 100, 512, 256), 1.61),
    ("the same, vLLM alone", Decoding("0.5B", 256, 100, 512, 256), 3.72),
)
"""Measured generations of docs/benchmarks.md, the longest response at its limit of 512 tokens."""


def checked_generation() -> str:
    """Measured generations against the estimate."""
    rows = [
        (what, f"{measured:.2f} s", f"{point.seconds:.2f} s", f"{point.reading:.2f} s")
        for what, point, measured in GENERATED
    ]
    return table(("generation, H200, 0.5B, 256 rows", "measured", "estimated", "of it reading"), rows)


def checked_memory() -> str:
    """What influence added to measured peaks against the estimate."""
    rows = []
    points = (
        ("local, 64 x 1,024", 64 * 1024, 72.7 - 71.0),
        ("local, 64 x 1,024, checkpointing", 64 * 1024, 32.6 - 30.7),
        ("verl, 64 x 1,024", 64 * 1024, 74.7 - 72.7),
    )
    for what, tokens, measured in points:
        estimate = (factor_bytes("1.5B") * tokens + CHUNK) / GIB
        rows.append((f"{what}, 1.5B", f"{measured:.1f} GiB", f"{estimate:.2f} GiB"))
    portion = settings(1, "data.max_prompt_length=1", "data.max_response_length=2047", f"{ROLLOUT}=8")
    estimate = influence_bytes(portion, facts_of("1.5B"), 2) / GIB
    rows.append(("verl, 256 x 2,048 in portions, 1.5B", f"{79.7 - 76.1:.1f} GiB", f"{estimate:.2f} GiB"))
    return table(("what influence adds, H200", "measured", "estimated"), rows)


ROLLOUT = "actor_rollout_ref.rollout.n"


def tables() -> str:
    """All tables of the document, each under its heading."""
    parts = (
        ("A token", per_token()),
        ("A step of 1,024 responses of 32k tokens", per_step()),
        ("Memory of a GPU for the same step", per_device()),
        ("Seconds of the same step", per_phase()),
        ("Checked: the update", checked_rates()),
        ("Checked: generation", checked_generation()),
        ("Checked: memory", checked_memory()),
    )
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts)


def document(text: str) -> str:
    """The document with the tables as they are now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}"


def small_model(hidden: int = 512) -> Qwen2ForCausalLM:
    """What is measured on the CPU."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    return Qwen2ForCausalLM(config)


def capture(tracer: InfluenceTracer, rows: Iterable[int], length: int) -> None:
    """One micro-batch a response: a prompt token and `length` others."""
    for row in rows:
        ids = torch.randint(0, 512, (1, length + 1))
        with tracer.capture(Layout.packed([row], [1], [length])):
            tracer.model(input_ids=ids, labels=ids).loss.backward()
        tracer.model.zero_grad()


def group_of(responses: int) -> Group:
    """All of them, accepted and rejected in turn."""
    return Group("g", tuple(range(responses)), tuple(row % 2 == 0 for row in range(responses)))


def measure() -> Iterator[str]:
    """Bytes of factors, seconds of scoring and bytes exchanged, for a group of growing length, in float32."""
    model, options = small_model(), InfluenceConfig(enable=True)
    modules = traced_modules(model, options)
    yield f"estimated: {bytes_per_token(modules, torch.float32)} bytes a token held"
    for length in (64, 128, 256, 512):
        tracer, spent = InfluenceTracer(model, options), []
        for _ in range(3):
            capture(tracer, range(GROUP), length)
            held = 0
            for batch in tracer.captured:
                own = {id(factor): factor.nbytes for factor in (*batch.u.values(), *batch.v.values())}
                held += sum(own.values())
            begin = time.process_time()
            tracer.scores([group_of(GROUP)])
            spent.append(time.process_time() - begin)
        tokens = GROUP * length
        micro = sorted(spent)[1] / tokens * 1e6
        yield f"{tokens:6d} tokens: {held / tokens:.0f} bytes a token held, scores {micro:.1f} µs a token"
    for crossing in CROSSINGS:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(_rank, (crossing, folder), nprocs=crossing.ranks)
            sent = int((Path(folder) / "sent").read_text())
        estimate = exchanged_bytes(traced_modules(small_model(crossing.hidden), options), crossing.responses)
        yield f"{crossing}: {sent:,} bytes given to collectives, estimated {estimate:,}"


@dataclass(frozen=True)
class Crossing:
    """A group whose responses are spread over ranks."""

    ranks: int
    hidden: int
    responses: int
    length: int


CROSSINGS = (
    Crossing(ranks=2, hidden=512, responses=16, length=16),
    Crossing(ranks=2, hidden=512, responses=16, length=128),
    Crossing(ranks=2, hidden=256, responses=16, length=16),
    Crossing(ranks=2, hidden=512, responses=4, length=16),
    Crossing(ranks=3, hidden=512, responses=16, length=16),
)


def _rank(rank: int, crossing: Crossing, folder: str) -> None:
    """Score the group whose responses lie on all ranks, and note what the first of them gave away."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=crossing.ranks
    )
    sent = []
    for name in ("all_reduce", "all_gather"):
        real = getattr(distributed, name)

        def counted(*tensors: Any, real: Any = real, **options: Any) -> Any:
            sent.append(tensors[-1].nbytes)
            return real(*tensors, **options)

        setattr(distributed, name, counted)
    model = small_model(crossing.hidden)
    tracer = InfluenceTracer(model, InfluenceConfig(enable=True), distributed.group.WORLD)
    capture(tracer, range(rank, crossing.responses, crossing.ranks), crossing.length)
    tracer.scores([group_of(crossing.responses)])
    if rank == 0:
        (Path(folder) / "sent").write_text(str(sum(sent)))
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scaling.md")
    parser.add_argument("--measure", action="store_true", help="measure on the CPU instead")
    arguments = parser.parse_args()
    if arguments.measure:
        for line in measure():
            print(line, flush=True)
    elif arguments.write:
        DOCUMENT.write_text(document(DOCUMENT.read_text()))
    else:
        print(tables())
