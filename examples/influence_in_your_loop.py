"""Token influence in a plain transformers training loop: the lines marked with an arrow are all it takes.

    python examples/influence_in_your_loop.py

A tiny random model answers two prompts, four samples each; the "reward" is whether the answer holds the token
7. One policy-gradient step is made, and the tokens that pulled the update most towards the accepted answers
are printed.
"""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from archer.influence import Group, InfluenceConfig, InfluenceTracer, Layout

torch.manual_seed(0)
PROMPT, ANSWER, SAMPLES, VOCABULARY = 5, 12, 4, 24

model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

config = InfluenceConfig.of_preset("signed", enable=True, projection_dim_factor=4)  # <-
tracer = InfluenceTracer(model, config)  # <-
print(tracer.describe())

for step in range(1, 4):
    # Sample, and see which answers are right.
    prompts = torch.randint(0, VOCABULARY, (2, PROMPT)).repeat_interleave(SAMPLES, dim=0)
    sequences = model.generate(
        prompts, max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=True, pad_token_id=0
    )
    answers = sequences[:, PROMPT:]
    accepted = (answers == 7).any(dim=1)
    advantages = accepted.float() - accepted.view(2, SAMPLES).float().mean(1).repeat_interleave(SAMPLES)

    groups = [
        Group(f"prompt {g}", rows, accepted[rows]) for g, rows in enumerate(torch.arange(8).split(SAMPLES))
    ]  # <-
    selection = tracer.select(groups)  # <- before the update: what has no contrast costs nothing

    # One update in micro-batches of four, as any loop would do it.
    for rows in torch.arange(len(sequences)).split(4):
        layout = Layout.blocks(rows, PROMPT, [ANSWER] * len(rows), PROMPT + ANSWER)  # <-
        with tracer.capture(layout.only(selection.rows)):  # <-
            logits = model(sequences[rows]).logits[:, PROMPT - 1 : -1]
            log_probs = logits.log_softmax(-1).gather(-1, answers[rows].unsqueeze(-1)).squeeze(-1)
            loss = -(advantages[rows].unsqueeze(1) * log_probs).mean()
            tracer.watch(loss, log_probs, Layout.responses(rows, [ANSWER] * len(rows), ANSWER))  # <-
            loss.backward()

    scores = tracer.scores(selection)  # <-
    optimizer.step()
    optimizer.zero_grad()

    metrics = tracer.metrics()
    print(
        f"\nstep {step}: {int(accepted.sum())} of {len(accepted)} answers accepted, "
        f"{metrics['influence_trace/selected_prompts']:.0f} prompts with a contrast, "
        f"{metrics['influence_trace/debug_second_backwards']:.0f} extra backwards"
    )
    ranked = sorted(
        ((float(s), row, t) for row, line in scores.items() for t, s in enumerate(line)), reverse=True
    )
    for score, row, t in ranked[:5]:
        kind = "accepted" if accepted[row] else "rejected"
        print(f"  {score:+9.3f}  answer {row} ({kind}), token {t:2d} = {int(answers[row, t])}")
