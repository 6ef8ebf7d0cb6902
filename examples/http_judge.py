"""A judge behind HTTP: another model says how good a response is, in an `async def`.

    archer train reward.custom_reward_function.path=examples/http_judge.py \
        reward.custom_reward_function.name=judge reward.custom_reward_function.max_concurrency=64 \
        reward.custom_kwargs='{url: "http://localhost:8000/judge"}' reward.timeout_s=60 ...

Up to max_concurrency calls wait at the same time, each for at most reward.timeout_s. The service gets the
question and the answer as JSON and returns {"score": 0.7, "why": "..."}; any client library will do in place
of the few lines of HTTP here.
"""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


async def judge(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any],
    messages: list[dict[str, str]],
    url: str,
) -> dict[str, Any] | None:
    """Ask the service; None, no opinion, where there is nothing to judge."""
    if not solution_str.strip():
        return None
    question = messages[-1]["content"] if messages else ""
    verdict = await post(url, {"question": question, "answer": solution_str, "reference": ground_truth})
    return {"score": verdict["score"], "acc": verdict["score"] >= 0.5, "why": verdict["why"]}


async def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send JSON and return the JSON of the answer."""
    address, data = urlsplit(url), json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    try:
        head = f"POST {address.path or '/'} HTTP/1.0\r\nHost: {address.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = await reader.read()
    finally:
        writer.close()
    status, _, content = answer.partition(b"\r\n\r\n")
    if status.split()[1:2] != [b"200"]:
        raise RuntimeError(f"{url} answered {status.split(maxsplit=1)[-1][:100]!r}")
    return json.loads(content)
