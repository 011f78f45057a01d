"""What an engine of vLLM is: the contract's resource attributes from its configuration."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tokenlag_tracer import conventions as names

Value = str | int | float | bool | None


def resource_of(scheduler: Any, version: str) -> dict[str, Value]:
    """Returns an engine's resource; what its release does not tell is left out.

    Args:
        scheduler: of the engine.
        version: of vLLM.
    """
    config = scheduler.vllm_config
    resource: dict[str, Value] = {
        names.ENGINE_NAME: "vllm",
        names.ENGINE_VERSION: version,
        names.ENGINE_MAX_BATCH_TOKENS: scheduler.max_num_scheduled_tokens,
        names.ENGINE_MAX_SEQS: scheduler.max_num_running_reqs,
        names.ENGINE_CHUNKED_PREFILL: config.scheduler_config.enable_chunked_prefill,
        names.ENGINE_PREFIX_CACHING: config.cache_config.enable_prefix_caching,
        names.ENGINE_TENSOR_PARALLEL: config.parallel_config.tensor_parallel_size,
        names.ENGINE_PIPELINE_PARALLEL: config.parallel_config.pipeline_parallel_size,
        names.MODEL_NAME: model_of(config),
    }
    resource |= _kv_of(scheduler, config)
    known: dict[str, Value] = {key: value for key, value in resource.items() if value is not None}
    # Of the settings that change what a step costs, so that another value is another set-up.
    digest = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=8)
    return known | {names.CONFIG_HASH: digest.hexdigest()}


def model_of(config: Any) -> str | None:
    """Returns the model's name as clients know it."""
    served = config.model_config.served_model_name
    if isinstance(served, (list, tuple)):
        served = served[0] if served else None
    return str(served or config.model_config.model) or None


def is_eager(config: Any) -> bool:
    """Returns whether no graphs are used at all."""
    return getattr(config.model_config, "enforce_eager", False) is True


def rank_of(config: Any) -> int:
    """Returns which data-parallel rank of the server an engine is."""
    parallel = config.parallel_config
    for name in ("data_parallel_index", "data_parallel_rank"):
        rank = getattr(parallel, name, None)
        if isinstance(rank, int):
            return rank
    return 0


def _kv_of(scheduler: Any, config: Any) -> dict[str, Value]:
    """Returns the KV cache's size in tokens and a token's size in bytes.

    Where layers differ (sliding windows, states) a token has no one size: nothing is said then.
    """
    kv = getattr(scheduler, "kv_cache_config", None)
    groups = getattr(kv, "kv_cache_groups", None)
    if kv is None or not groups or len(groups) != 1:
        return {}
    found: dict[str, Value] = {}
    block_size, n_blocks = scheduler.block_size, kv.num_blocks
    if isinstance(block_size, int) and isinstance(n_blocks, int):
        found[names.ENGINE_KV_TOKENS] = block_size * n_blocks
        spec, layers = groups[0].kv_cache_spec, groups[0].layer_names
        page_bytes = getattr(spec, "page_size_bytes", None)
        if isinstance(page_bytes, int) and layers and spec.block_size:
            n_devices = config.parallel_config.tensor_parallel_size
            found[names.MODEL_KV_BYTES_PER_TOKEN] = (
                page_bytes * len(layers) * n_devices // spec.block_size
            )
    return found
