"""Lets vLLM schedule asynchronously on a CPU: its platform switches that off, and it works.

Found before other modules of this name by a server that is to run two steps deep in a test.
"""

from typing import Any

from tokenlag_tracer.engines import imports


def _change(module: Any) -> None:
    original = module.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    module.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


imports.when_imported("vllm.platforms.cpu", _change)
