"""How much memory a run needs on each device, from sizes alone.

Symbols: P parameters, N ranks that share the state, L layers, h hidden size, q and kv widths of queries and
of keys or values, i width of the feed-forward layer, V vocabulary, T tokens of a micro-batch, a bytes of a
number in a matrix product (4 float32, 2 bfloat16).

Lengths are the longest that the configuration allows, so what depends on them is an upper bound; so is what
influence keeps, for every group counts as traced.

The head and the layers have their peaks one after the other, so an update takes the larger of the two beside
what is kept (`tests/recipes/test_memory.py` measures it).
"""

from archer.engines.preflight.model import ModelShape

GIB = 2**30
CHUNK_ELEMENTS = 2**27  # of archer.engines.local.policy, which imports more than an estimate should


def state_bytes(shape: ModelShape, ranks: int = 1) -> tuple[int, int, int]:
    """(weights, gradients, AdamW's two moments) of a rank, all float32: (4 P, 4 P, 8 P) / N."""
    weights = 4 * shape.parameters // ranks
    return weights, weights, 2 * weights


def kept_by_layer(shape: ModelShape, tokens: int, width: int) -> int:
    """What one decoder layer keeps for its backward: T (16 h + a (2 h + 3 q + 2 kv + 4 i)) bytes.

    float32 whatever the products run in: both norms' inputs and their normalised values (4 h). In the format
    of the products: the norms' outputs (2 h), queries, keys, values, the attention's result and its copy for
    the output projection (3 q + 2 kv), gate, its activation, up and their product (4 i).
    """
    products = 2 * shape.hidden + 3 * shape.query + 2 * shape.key_value + 4 * shape.intermediate
    return tokens * (16 * shape.hidden + width * products)


def kept_bytes(shape: ModelShape, tokens: int, width: int, stream: int, checkpointing: bool) -> int:
    """Activations that a micro-batch keeps until its backward has passed them.

    L K, K being what a layer keeps; with gradient checkpointing only each layer's input, s T h L, at s
    bytes a number in the residual stream.
    """
    if checkpointing:
        return stream * tokens * shape.hidden * shape.layers
    return shape.layers * kept_by_layer(shape, tokens, width)


def inside_layer_bytes(shape: ModelShape, tokens: int, width: int, checkpointing: bool) -> int:
    """What the backward through one layer adds: 3 a T i, gradients inside its feed-forward part.

    With gradient checkpointing K more, for the layer is computed again.
    """
    recomputed = kept_by_layer(shape, tokens, width) if checkpointing else 0
    return recomputed + 3 * width * tokens * shape.intermediate


def at_head_bytes(shape: ModelShape, tokens: int, width: int) -> int:
    """What the output head adds in the local engine, which runs it in chunks of C = min(T, 2^27 / V) tokens.

    C V (13 + a), and 4 C V more where products are narrower than float32: logits, their float32 copy,
    probabilities, the masked logits and their product, a mask of one byte. 4 V h: the gradient of its
    weights, before it is added to that of earlier micro-batches.
    """
    chunk = min(tokens, max(1, CHUNK_ELEMENTS // shape.vocabulary))
    logits = chunk * shape.vocabulary * (13 + width + (4 if width < 4 else 0))
    return logits + 4 * shape.vocabulary * shape.hidden


def whole_logit_bytes(shape: ModelShape, tokens: int, width: int) -> int:
    """What the output head adds where all logits of a micro-batch exist at once, as in verl: T V (a + 4)."""
    return tokens * shape.vocabulary * (width + 4)


def cache_bytes(shape: ModelShape, rows: int, positions: int, width: int) -> int:
    """Keys and values of rows that are decoded together: 2 a L kv x rows x positions."""
    return 2 * width * shape.layers * shape.key_value * rows * positions


def decoding_bytes(shape: ModelShape, rows: int, prompt_tokens: int, width: int, nucleus: bool) -> int:
    """What sampling needs beside the cache, the larger of two.

    At the prompts, inside one layer: a T (2 h + 3 i). At the drawing of a token, for each row and entry of
    the vocabulary: 20 bytes (logits, scaled, log-probs, the distribution function in float64), and 20 more
    where nucleus sampling sorts them.
    """
    prompts = width * prompt_tokens * (2 * shape.hidden + 3 * shape.intermediate)
    return max(prompts, (40 if nucleus else 20) * rows * shape.vocabulary)
