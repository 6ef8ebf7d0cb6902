"""The truncation of importance weights, in verl's notation (free of torch: the configuration checks it)."""

from dataclasses import dataclass

from archer.errors import ArcherError


@dataclass(frozen=True)
class Threshold:
    """Bounds on weights: at most `upper`; with a `lower` bound, those outside the two become 0 (IcePop)."""

    upper: float
    lower: float | None = None

    @staticmethod
    def parse(text: str) -> "Threshold":
        """Read `2.0`, which truncates at 2, or `0.5_5.0`, which drops what lies outside [0.5, 5]."""
        try:
            bounds = [float(part) for part in text.split("_")]
        except ValueError:
            bounds = []
        lower = bounds[0] if len(bounds) == 2 else 1.0
        if len(bounds) not in (1, 2) or not 0 < lower <= 1 <= bounds[-1]:
            raise ArcherError(
                f"algorithm.rollout_correction.rollout_is_threshold={text}: expected an upper bound of at "
                "least 1, such as 2.0, or lower_upper around 1, such as 0.5_5.0 (with both points: the "
                "command line reads 0.5_5 as the number 0.55)"
            )
        return Threshold(bounds[-1], bounds[0] if len(bounds) == 2 else None)
