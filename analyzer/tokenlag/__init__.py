"""tokenlag: why an LLM server is slow, read from its traces.

The folders are the arrows: each imports only from those before it —
`errors`, `window`, `store`, `read`, `explain`, `judge`, `report`, `pipeline`, `cli`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
