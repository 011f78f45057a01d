"""Which HTTP calls are requests to a model, and what kind of request they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# End of a path → `gen_ai.operation.name`. OpenAI's, Anthropic's, and the engines' own.
OPERATIONS: Final[Mapping[str, str]] = {
    "/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/api/chat": "chat",
    "/completions": "text_completion",
    "/completion": "text_completion",
    "/infill": "text_completion",
    "/generate": "text_completion",
    "/generate_stream": "text_completion",
    "/inference/v1/generate": "text_completion",
    "/embeddings": "embeddings",
    "/embed": "embeddings",
    "/v1/score": "embeddings",
    "/score": "embeddings",
    "/rerank": "embeddings",
    "/pooling": "embeddings",
    "/classify": "embeddings",
}


def operation_of(path: str, more: Mapping[str, str] | None = None) -> str | None:
    """Returns the operation that a POST to a path asks for, None if it is no request.

    Args:
        path: of the URL.
        more: ends of further paths, and their operations; they come first.
    """
    path = path.rstrip("/")
    for table in (more or {}, OPERATIONS):
        for end, operation in table.items():
            if path.endswith(end):
                return operation
    return None
