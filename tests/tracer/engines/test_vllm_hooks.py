"""How the vLLM adapter gets in and out: import hooks, patches, versions, the front end's side."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenlag_tracer import asgi, engines
from tokenlag_tracer import conventions as names
from tokenlag_tracer.engines import imports, vllm, vllm_front, vllm_scheduler
from tokenlag_tracer.engines.patching import Patches, _warned

from tests.tracer.engines.vllm_standin import Request, Scheduler
from tests.tracer.support import Bench, named

FILES = {
    "__init__.py": "__version__ = '0.32.0'\n",
    "config/__init__.py": "",
    "config/scheduler.py": """
from tests.tracer.engines.vllm_standin import Scheduler

class SchedulerConfig:
    def get_scheduler_cls(self):
        return Scheduler
""",
    "v1/__init__.py": "",
    "v1/engine/__init__.py": "",
    "v1/engine/core.py": """
from types import SimpleNamespace

class EngineCore:
    def preprocess_add_request(self, request):
        return SimpleNamespace(request_id=request), 0
""",
    "renderers/__init__.py": "",
    "renderers/base.py": "class BaseRenderer:\n    pass\n",
}


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "vllm"
    vllm.uninstrument()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    _warned.clear()


def config() -> Any:
    """What a scheduler of vLLM knows of its configuration."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_index=3
        ),
        model_config=SimpleNamespace(
            served_model_name=["tiny", "t"], model="/m", enforce_eager=True
        ),
    )  # fmt: skip


class Configured(Scheduler):
    """The stand-in, with a configuration."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.vllm_config = config()
        self.block_size = 16
        spec = SimpleNamespace(page_size_bytes=4096, block_size=16)
        self.kv_cache_config = SimpleNamespace(
            num_blocks=100,
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["a", "b"])],
        )


def test_what_is_imported_later_is_changed_then_and_restored(fake_vllm: Path) -> None:
    engines.autoload()
    config_module = importlib.import_module("vllm.config.scheduler")
    kind = config_module.SchedulerConfig().get_scheduler_cls()
    assert issubclass(kind, Scheduler)
    assert kind is not Scheduler
    # The module looks as if it had been loaded by its own loader.
    assert type(config_module.__spec__.loader).__module__ == "_frozen_importlib_external"
    vllm.uninstrument()
    assert config_module.SchedulerConfig().get_scheduler_cls() is Scheduler
    assert imports._finder not in sys.meta_path or imports._waiting


def test_what_is_imported_already_is_changed_at_once(fake_vllm: Path) -> None:
    module = importlib.import_module("vllm.v1.engine.core")
    vllm.plugin()
    vllm.plugin()  # vLLM may load plugins more than once
    made, _ = module.EngineCore().preprocess_add_request("x")
    assert made._tokenlag_arrived_ns > 0
    vllm.uninstrument()
    made, _ = module.EngineCore().preprocess_add_request("x")
    assert not hasattr(made, "_tokenlag_arrived_ns")


def test_a_module_without_the_names_is_left_alone_with_one_warning(
    fake_vllm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (fake_vllm / "config" / "scheduler.py").write_text("class Other:\n    pass\n")
    with caplog.at_level(logging.WARNING):
        engines.autoload()
        importlib.import_module("vllm.config.scheduler")
        importlib.import_module("vllm.renderers.base")  # lacks what is timed: nothing to say
    assert len(caplog.records) == 1
    assert "vllm.config.scheduler is not traced" in caplog.text


def test_releases(caplog: pytest.LogCaptureFixture, fake_vllm: Path) -> None:
    first, second = vllm.layout_of("0.30.2"), vllm.layout_of("0.32.0+cpu")
    assert first is not None
    assert second is not None
    assert (first.blocked, second.blocked) == ("skipped_waiting", "deferred_waiting")
    assert vllm.layout_of("1.0.0") == second
    assert vllm.layout_of("0.29.1") is None
    assert vllm.layout_of("dev") is None
    (fake_vllm / "__init__.py").write_text("__version__ = '0.29.1'\n")
    importlib.import_module("vllm")
    with caplog.at_level(logging.WARNING):
        assert vllm.make_tracker(Configured()) is None
        vllm.plugin()
        vllm.plugin()
    assert not vllm._callbacks
    assert len(caplog.records) <= 2


def test_kill_switch(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAG_DISABLED", "1")
    vllm.plugin()
    module = importlib.import_module("vllm.config.scheduler")
    assert module.SchedulerConfig().get_scheduler_cls() is Scheduler
    assert vllm.make_tracker(Configured()) is None


def test_an_engine_in_this_process(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("vllm")
    bench = Bench()
    told: dict[str, Any] = {}

    def engine(**given: Any) -> Any:
        told.update(given)
        return bench.engine(resource=given["resource"])

    monkeypatch.setattr("tokenlag_tracer.recorder.engine", engine)
    scheduler = Configured()
    scheduler.add_request(Request("a-0123abcd", 8, 2))  # before tracing began
    kind = type("LLM", (), {"__module__": "vllm.entrypoints.llm"})
    llm = kind()
    llm.llm_engine = SimpleNamespace(
        engine_core=SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
    )
    assert vllm.handles(llm)
    assert not vllm.handles(kind())
    assert engines.instrument(llm) is llm
    assert told["rank"] == 3
    resource = told["resource"]
    assert resource[names.ENGINE_KV_TOKENS] == 1600
    assert resource[names.MODEL_KV_BYTES_PER_TOKEN] == 4096 * 2 * 2 // 16
    assert resource[names.MODEL_NAME] == "tiny"
    assert resource[names.ENGINE_TENSOR_PARALLEL] == 2
    assert resource[names.ENGINE_MAX_SEQS] == 4
    scheduler.schedule()
    assert scheduler._tokenlag is not None  # type: ignore[attr-defined]
    engines.uninstrument(llm)
    assert type(scheduler) is Configured


class App:
    """An application that hands a request over to the engine, as vLLM's does."""

    def __init__(self) -> None:
        self.handed: list[Any] = []
        self.is_chat = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        renderer, processor = Renderer(), Processor(self.handed)
        render = renderer.render_chat_async if self.is_chat else renderer.render_cmpl_async
        await asyncio.gather(render())
        request = SimpleNamespace(
            request_id="0_chatcmpl-x-0123abcd", external_req_id="chatcmpl-x", trace_headers=None,
            sampling_params=SimpleNamespace(max_tokens=7),
        )  # fmt: skip
        processor.add_request(
            request, "text", SimpleNamespace(sampling_params=SimpleNamespace(n=2)), 0, None
        )
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


class Renderer:
    async def render_chat_async(self) -> None:
        await self.tokenize_prompts_async()

    async def render_cmpl_async(self) -> None:
        await self.tokenize_prompts_async()

    async def tokenize_prompts_async(self) -> None:
        await asyncio.sleep(0)


class Processor:
    def __init__(self, handed: list[Any]) -> None:
        self.handed = handed

    def add_request(self, request: Any, *rest: Any) -> None:
        self.handed.append(request)


@pytest.fixture
def patched() -> Iterator[None]:
    patches = Patches()
    patches.replace(Renderer, "render_chat_async", vllm_front.time_templating)
    patches.replace(Renderer, "tokenize_prompts_async", vllm_front.time_tokenizing)
    patches.replace(Processor, "add_request", vllm_front.join_request)
    yield
    patches.restore()
    assert "__wrapped__" not in vars(Processor.add_request)


def call(app: Any) -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(_: Any) -> None:
        return

    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions",
        "headers": [(b"x-request-id", b"x")],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))


@pytest.mark.parametrize("is_chat", [True, False])
def test_the_front_end_tells_its_stages_and_the_engine_whose_child_it_is(
    patched: None, is_chat: bool
) -> None:
    bench = Bench()
    app = App()
    app.is_chat = is_chat
    call(asgi.TraceMiddleware(app, recorder=bench.front(), propagate=False))
    bench.now_ns = 10**15
    rows = bench.settle()
    [request] = named(rows, names.SPAN_REQUEST)
    assert request.attributes[names.REQUEST_ID] == "chatcmpl-x"
    assert request.attributes[names.REQUEST_MAX_TOKENS] == 7
    assert request.attributes[names.REQUEST_CHOICE_COUNT] == 2
    [handed] = app.handed
    assert handed.trace_headers["traceparent"].split("-")[1:3] == [
        f"{request.trace_id:032x}",
        f"{request.span_id:016x}",
    ]
    stages = [row.attributes[names.STAGE] for row in named(rows, names.SPAN_FRONTEND)]
    expected = ["parse", "template", "tokenize", "preprocess"]
    assert stages == [stage for stage in expected if is_chat or stage != "template"]


def test_a_context_that_vllm_was_given_stays(patched: None) -> None:
    processor = Processor([])
    request = SimpleNamespace(trace_headers={"traceparent": "given"})
    processor.add_request(request, None)  # outside of any request, too
    assert request.trace_headers == {"traceparent": "given"}


def test_a_front_end_hook_that_fails_hands_the_request_on(
    patched: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise AttributeError("a name")

    monkeypatch.setattr(asgi, "current_request", fail)
    processor = Processor([])
    with caplog.at_level(logging.WARNING):
        processor.add_request("r")
        processor.add_request("s")
    assert processor.handed == ["r", "s"]
    assert len(caplog.records) == 1
    _warned.clear()


def test_the_middleware_is_put_around_the_application_once() -> None:
    class Web:
        def __init__(self) -> None:
            self.user_middleware: list[Any] = []
            self.middleware_stack = None

        def add_middleware(self, cls: Any, **options: Any) -> None:
            self.user_middleware.insert(0, SimpleNamespace(cls=cls, options=options))

        def __call__(self) -> None: ...

    web = Web()
    build = vllm_front.trace_app(lambda: web)
    assert build() is web
    assert build() is web
    [entry] = web.user_middleware
    assert entry.cls is asgi.TraceMiddleware
    assert entry.options == {"propagate": False}


def test_patches_leave_alone_what_others_wrapped_since() -> None:
    class Owner:
        def name(self) -> int:
            return 1

    patches = Patches()
    assert patches.replace(Owner, "name", lambda original: lambda self: original(self) + 1)
    assert not patches.replace(Owner, "other", lambda original: original)
    ours = Owner.name
    Owner.name = lambda self: ours(self) * 10  # type: ignore[method-assign]
    patches.restore()
    assert Owner().name() == 20
    vllm_scheduler.release_all()
