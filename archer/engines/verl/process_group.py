"""The ranks' process group, joined before verl does: verl knows neither the time limit nor a CPU."""

import os

from archer.errors import ArcherError

TIMEOUT = "VERL_PG_TIMEOUT_SECONDS"


def process_group_timeout() -> int | None:
    """Seconds that a collective may take, from VERL_PG_TIMEOUT_SECONDS; None: torch's own limit."""
    text = os.environ.get(TIMEOUT)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ArcherError(f"{TIMEOUT}={text}: expected a whole number of seconds, at least 1")
    return int(text)


def join_process_group() -> None:
    """Join it; a second call changes nothing."""
    from verl.utils.device import get_device_name
    from verl.utils.distributed import initialize_global_process_group_ray

    backend = "gloo" if get_device_name() == "cpu" else None
    initialize_global_process_group_ray(timeout_second=process_group_timeout(), backend=backend)
