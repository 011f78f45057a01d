"""A user's own scheduler class for vLLM: counts its calls into a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class OwnScheduler(Scheduler):
    """vLLM's scheduler, and a dot in a file for each step."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        with Path(os.environ["OWN_SCHEDULER_LOG"]).open("a") as log:
            log.write(".")
        return super().schedule(*args, **kwargs)
