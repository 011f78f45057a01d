"""Where the engines are that tests run for real: this interpreter's, or others by variables."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache

import pytest

# Read now: each test of the tracer begins with a clean environment.
_GIVEN = {name: value for name, value in os.environ.items() if name.endswith("_PYTHON")}


@cache
def _has(python: str, *modules: str) -> bool:
    code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    return subprocess.run([python, "-c", code, *modules], check=False).returncode == 0


def python_with(variable: str, *modules: str) -> str:
    """Returns an interpreter that has some modules; skips if there is none.

    One that was named and lacks them is a failure: somebody meant the test to run.

    Args:
        variable: an environment variable that names one, if it is not this one.
        modules: that it must have.
    """
    given = _GIVEN.get(variable, "")
    if given:
        if not _has(given, *modules):
            pytest.fail(f"{variable}={given} lacks one of {', '.join(modules)}")
        return given
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(
            f"{missing[0]} is not installed (nor does {variable} name a Python that has it)"
        )
    return sys.executable
