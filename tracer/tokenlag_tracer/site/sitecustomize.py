"""Run by Python at its start, when `tokenlag-tracer run` put this folder on PYTHONPATH.

Installs the engine adapters' import hooks, then gives way to the `sitecustomize` that it
stands before. Whatever fails here, the program starts as it would have.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


def _install() -> None:
    if os.environ.get("TOKENLAG_IS_WRITER"):
        return
    from tokenlag_tracer.config import is_disabled

    if not is_disabled():
        from tokenlag_tracer import engines

        engines.autoload()


def _give_way() -> None:
    here = str(Path(__file__).resolve().parent)
    path = [folder for folder in sys.path if os.path.realpath(folder or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


try:
    _install()
except Exception:
    if os.environ.get("TOKENLAG_LOG"):
        import traceback

        try:
            with Path(os.environ["TOKENLAG_LOG"]).open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
        except OSError:
            pass
_give_way()
