"""Soft overlong shaping of DAPO: a response that comes close to the length limit loses reward gradually."""

from archer.errors import ArcherError


def overlong_penalty(length: int, max_response_length: int, buffer_len: int, penalty_factor: float) -> float:
    """Return what to add to a response's reward for its length, in [-penalty_factor, 0].

    With L the length, M the maximum, B the buffer and f the factor:

        0                     L ≤ M − B
        f · (M − B − L) / B   M − B < L ≤ M
        −f                    L > M

    B = 0 is the hard limit: nothing is taken from any response that fits.
    """
    if not 0 <= buffer_len <= max_response_length:
        raise ArcherError(
            f"The overlong buffer is {buffer_len} tokens, but must lie between 0 and the longest response "
            f"({max_response_length} tokens): set its len within that range."
        )
    if not penalty_factor >= 0:
        raise ArcherError(
            f"The overlong penalty_factor is {penalty_factor}, but must not be negative: "
            "it is the most that an overlong response loses."
        )
    excess = length - (max_response_length - buffer_len)
    if excess <= 0:
        return 0.0
    if excess >= buffer_len:
        return -penalty_factor
    return -penalty_factor * excess / buffer_len
