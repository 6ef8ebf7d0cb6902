"""Times of the day: `5:00` is `05:00`; `3:30 PM` is `15:30`, and `3:30` where the question knows the half."""

import re

from archer.rewards.math.text import squash

_TIME = re.compile(
    r"(?P<hour>[01]?[0-9]|2[0-4]):(?P<rest>[0-5][0-9](?::[0-5][0-9])?)"
    r"(?: ?(?:\\text\{ ?)?(?P<half>[AaPp])\.? ?[Mm]\.?(?: ?\})?)?"
)
_NOON = 12


def is_time(text: str) -> bool:
    """Tell whether a tidy text may be a time of the day."""
    return _TIME.fullmatch(_plain(text)) is not None


def times_agree(answer: str, reference: str) -> bool:
    """Tell whether two texts are the same time; one of them may leave out the half of the day."""
    first, second = (_TIME.fullmatch(_plain(text)) for text in (answer, reference))
    if first is None or second is None or first["rest"] != second["rest"]:
        return False
    hours = {_hour(time) for time in (first, second)}
    without_half = [_hour(time) for time in (first, second) if time["half"] is None]
    if len(without_half) == 1 and without_half[0] <= _NOON:
        hours = {hour % _NOON for hour in hours}
    return len(hours) == 1


def _hour(time: re.Match[str]) -> int:
    hour = int(time["hour"])
    return hour if time["half"] is None else hour % _NOON + _NOON * (time["half"] in "Pp")


def _plain(text: str) -> str:
    return squash(re.sub(r"\{:\}|\\colon(?![A-Za-z])", ":", text))
