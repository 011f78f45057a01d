"""Runs transformers' continuous batching, traced, and says what it did. Not a test itself.

    python -m tests.tracer.engines.cb_driver SCENARIO

Prints one JSON object: for each request its prompt's length, the tokens it got, its status; and
which batches there were, by a recording of the scheduler that is not the tracer's.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import torch
import transformers
from tokenlag_tracer import engines
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM
from transformers.generation.continuous_batching import scheduler as schedulers

from benchmarks.lab.tiny_model import tiny_config

SEEN: list[dict[str, Any]] = []


def watch() -> None:
    """Notes every batch below the tracer's own wrapper."""
    original = schedulers.FIFOScheduler.schedule_batch

    def schedule_batch(self: Any, token_budget: int, cache_budget: int) -> Any:
        result = original(self, token_budget, cache_budget)
        if result[0]:
            SEEN.append({f.state.request_id: f.query_length for f in result[0]})
        return result

    schedulers.FIFOScheduler.schedule_batch = schedule_batch


def config(**more: Any) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(
        **{
            "num_blocks": 64, "page_size": 16, "max_batch_tokens": 64,
            "use_cuda_graph": False, "use_async_batching": False, **more,
        }
    )  # fmt: skip


def main() -> int:
    scenario = sys.argv[1]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    watch()
    model: Any = LlamaForCausalLM(tiny_config(512)).eval()
    model.set_attn_implementation("sdpa")
    settings = GenerationConfig(max_new_tokens=12, eos_token_id=-1, pad_token_id=2, do_sample=False)
    draw = random.Random(3)
    sizes = {"chunks": (8, 40, 150, 200, 30), "pressure": (100, 110, 90, 100)}.get(
        scenario, (20, 30, 40)
    )
    prompts = [[draw.randrange(6, 500) for _ in range(size)] for size in sizes]
    options: dict[str, Any] = {}
    if scenario == "pressure":
        options = {"num_blocks": 30}
        settings.max_new_tokens = 60
    if scenario == "shared":
        head = [draw.randrange(6, 500) for _ in range(64)]
        prompts = [head + prompt for prompt in prompts]
        options = {"allow_block_sharing": True}
    if scenario == "slots":
        options = {"max_requests_per_batch": 2}
    manager = model.init_continuous_batching(
        generation_config=settings, continuous_batching_config=config(**options)
    )
    manager.start()
    if scenario == "failing":
        engines.instrument(model)
        while manager.batch_processor is None:
            time.sleep(0.01)
        manager.batch_processor._tokenlag._cache = None
    results: dict[str, Any] = {}
    for number, prompt in enumerate(prompts):
        manager.add_request(prompt, request_id=f"r{number}")
        if scenario == "shared":  # the first one's blocks are complete before the next asks
            results[f"r{number}"] = manager.get_result(f"r{number}", timeout=60)
    if scenario == "cancel":
        while len(SEEN) < 4:
            time.sleep(0.001)
        manager.cancel_request("r1")
    expected = {f"r{n}" for n in range(len(prompts))} - ({"r1"} if scenario == "cancel" else set())
    deadline = time.monotonic() + 120
    while expected - set(results) and time.monotonic() < deadline:
        result = manager.get_result(timeout=1)
        if result is not None:
            results[result.request_id] = result
    manager.stop(block=True)
    sys.stdout.write(
        json.dumps(
            {
                "version": transformers.__version__,
                "batches": SEEN,
                "requests": {
                    name: {
                        "n_prompt": len(result.prompt_ids),
                        "n_output": len(result.generated_tokens),
                        "status": result.status.name,
                    }
                    for name, result in results.items()
                },
            }
        )
        + "\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
