"""The shapes of Qwen2.5-0.5B and 1.5B, for models with random weights."""

from transformers import Qwen2Config


def qwen_0_5b() -> Qwen2Config:
    """Return the configuration."""
    return _qwen(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14)


def qwen_1_5b() -> Qwen2Config:
    """Return the configuration."""
    return _qwen(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12)


def _qwen(**sizes: int) -> Qwen2Config:
    return Qwen2Config(vocab_size=151936, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
