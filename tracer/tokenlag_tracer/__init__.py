"""The tracer's side of tokenlag: what serving engines emit.

This package goes into serving images, so it depends on nothing that the standard
library does not have. The analyzer imports `conventions` from it and nothing else.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
