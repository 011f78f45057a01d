"""The service: an OpenAI-like completions endpoint in front of the engine. Run it as

    TOKENLAG_TRACES_DIR=traces uvicorn app:app --app-dir docs/examples/service

The tracer's part: `instrument(app)`, and `current_request()` for what only the handler knows.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import tokenlag_tracer
import torch
from engine import Engine, Limits, Request
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from tokenlag_tracer.asgi import current_request


def limits_of(environ: dict[str, str]) -> Limits:
    """Returns the limits that `SERVICE_MAX_SEQS=4` and the like give."""
    given: dict[str, Any] = {}
    for entry in fields(Limits):
        text = environ.get(f"SERVICE_{entry.name.upper()}")
        if text:
            is_switch = isinstance(entry.default, bool)
            given[entry.name] = text.lower() in ("1", "true", "on") if is_switch else int(text)
    return Limits(**given)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Starts the engine, and stops it."""
    torch.set_num_threads(int(os.environ.get("SERVICE_THREADS", "1")))
    app.state.engine = Engine(limits_of(dict(os.environ)))
    yield
    app.state.engine.stop()


app = FastAPI(lifespan=lifespan)
tokenlag_tracer.instrument(app, tenant_header="x-tenant")


class Body(BaseModel):
    """A request."""

    prompt: str = Field(min_length=1)
    max_tokens: int = Field(default=16, ge=1)
    stream: bool = False


@app.get("/health")
async def health() -> dict[str, str]:
    """Says that it serves."""
    return {"status": "ok"}


@app.post("/v1/completions")
async def completions(body: Body) -> Response:
    """Generates text."""
    trace = current_request()
    start_ns = time.monotonic_ns()
    tokens = list(body.prompt.encode())
    if trace is not None:
        trace.stage("parse", trace.arrived_ns, start_ns)
        trace.stage("tokenize", start_ns)
        trace.update(model="tiny", max_tokens=body.max_tokens, input_tokens=len(tokens))
    if len(tokens) + body.max_tokens > app.state.engine.limits.max_len:
        raise HTTPException(400, "prompt and max_tokens are longer than the model's context")
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[int | None, int]] = asyncio.Queue()
    request = Request(
        request_id=(trace.request_id if trace is not None else None) or f"r{start_ns}",
        tokens=tokens,
        max_tokens=body.max_tokens,
        deliver=lambda token, at_ns: loop.call_soon_threadsafe(answers.put_nowait, (token, at_ns)),
        traceparent=trace.traceparent if trace is not None else None,
    )
    app.state.engine.submit(request)

    async def stream() -> AsyncIterator[str]:
        is_done = False
        try:
            while not is_done:
                token, ready_ns = await answers.get()
                is_done = token is None
                if trace is not None:
                    trace.token_ready(ready_ns)
                yield "data: [DONE]\n\n" if token is None else _event(request.request_id, token)
        finally:
            request.is_aborted = not is_done

    if body.stream:
        return StreamingResponse(stream(), media_type="text/event-stream")
    text = ""
    try:
        while (token := (await answers.get())[0]) is not None:
            text += _word(token)
    except asyncio.CancelledError:
        request.is_aborted = True
        raise
    usage = {"prompt_tokens": len(tokens), "completion_tokens": body.max_tokens}
    choices = [{"index": 0, "text": text, "finish_reason": "length"}]
    return JSONResponse({"id": request.request_id, "choices": choices, "usage": usage})


WORDS = ["quokka", "axolotl", "narwhal", "wombat", "ocelot", "marmot", "puffin", "gecko"]


def _word(token: int) -> str:
    return f"{WORDS[token % len(WORDS)]} "


def _event(request_id: str, token: int) -> str:
    choice = {"index": 0, "text": _word(token), "finish_reason": None}
    return f"data: {json.dumps({'id': request_id, 'choices': [choice]})}\n\n"
