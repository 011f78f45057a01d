"""One sequence of a request on one engine: its waits, prefills and decode runs, from steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tokenlag_tracer import conventions as names
from tokenlag_tracer.identity import Context
from tokenlag_tracer.spans import Attributes, Row, attributes_of

# What a single request may hold in memory: a prompt of a million tokens in chunks of 256.
MAX_CHUNKS: Final = 4096
MAX_RUNS: Final = 4096


class Chunk(NamedTuple):
    """A prompt chunk: step, its times (monotonic ns), tokens, and tokens in KV before it."""

    step: int
    start_ns: int
    end_ns: int
    n_tokens: int
    n_context: int


@dataclass(slots=True)
class Prefill:
    """One prefill: the chunks of one run through the prompt. `is_cut`: it did not get through."""

    is_recompute: bool
    is_cut: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    n_tokens: int = 0


@dataclass(slots=True)
class Run:
    """An uninterrupted run of decode steps. `n_extra`: tokens beyond one for each step."""

    first_step: int
    start_ns: int
    first_end_ns: int
    last_step: int
    end_ns: int
    n_extra: int = 0
    is_exact: bool = True


class Wait(NamedTuple):
    """A time in the queue, monotonic ns, and why."""

    start_ns: int
    end_ns: int
    reason: str


@dataclass(slots=True, eq=False)
class Sequence:
    """What an engine did for one sequence, filled in step by step.

    Attributes:
        engine_id: of the engine.
        epoch_ns: of the engine.
        resource: number of the engine's resource.
        index: the handle that steps use.
        request_id: what the outside calls the request.
        span_id: of its `llm.engine_request`.
        queued_ns: when the engine took it in, monotonic.
        offset_ns: unix time minus the sender's monotonic time.
        context: the caller's, where the engine was handed one.
        fields: what else was told of it, by wire names.
        is_culprit: it had a prompt chunk in a step that was unusually long.
        is_written: its spans are out.
        ended_ns: when the engine was done with it; None while it is not.
    """

    engine_id: str
    epoch_ns: int
    resource: int
    index: int
    request_id: str | None
    span_id: int
    queued_ns: int
    offset_ns: int
    context: Context | None
    fields: dict[str, object]
    reason: str = "arrival"
    waits: list[Wait] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    n_preemptions: int = 0
    is_culprit: bool = False
    is_written: bool = False
    ended_ns: int | None = None
    n_cut: int = 0
    _waits_since_ns: int | None = None
    _is_in_prefill: bool = False
    _run: Run | None = None
    _token_end_ns: int | None = None

    def __post_init__(self) -> None:
        self._waits_since_ns = self.queued_ns

    # --- what happens -------------------------------------------------------------------------

    def wait_for(self, reason: str, at_ns: int) -> None:
        """It now waits for something else."""
        if self._waits_since_ns is not None:
            self._end_wait(at_ns)
        self._waits_since_ns, self.reason = at_ns, reason

    def chunk(self, chunk: Chunk) -> None:
        """A step takes part of its prompt."""
        self._end_wait(chunk.start_ns)
        if not self._is_in_prefill:
            self._is_in_prefill = True
            is_recompute = self.n_preemptions > 0 and bool(self.prefills or self.runs)
            self.prefills.append(Prefill(is_recompute))
        prefill = self.prefills[-1]
        prefill.n_tokens += chunk.n_tokens
        if len(prefill.chunks) < MAX_CHUNKS:
            prefill.chunks.append(chunk)
        else:
            prefill.chunks[-1] = chunk  # the prefill still ends where its last chunk does
            self.n_cut += 1

    def join(self, step: int, start_ns: int, end_ns: int, *, is_exact: bool = True) -> None:
        """It decodes from this step, with its times, on."""
        self._end_wait(start_ns)
        before_ns = start_ns
        if self._is_in_prefill:
            # The token before came out at the prefill's end: what kept it out since is decode.
            before_ns = self.prefills[-1].chunks[-1].end_ns
            self._token_end_ns = before_ns
            self._is_in_prefill = False
        elif self.runs and self._token_end_ns is not None:
            before_ns = self._token_end_ns
        self._run = Run(step, before_ns, end_ns, step, before_ns, is_exact=is_exact)

    def add_extra(self, n_extra: int) -> None:
        """In the last step it got so many tokens more than one (−1: none)."""
        if self._run is not None:
            self._run.n_extra += n_extra

    def leave(self, last_step: int, end_ns: int, *, is_exact: bool = True) -> None:
        """It decoded up to a step, which ended then."""
        run, self._run = self._run, None
        if run is None or last_step < run.first_step:
            return
        run.last_step, run.end_ns = last_step, max(end_ns, run.start_ns)
        run.is_exact = run.is_exact and is_exact
        self._token_end_ns = run.end_ns
        if len(self.runs) < MAX_RUNS:
            self.runs.append(run)
        else:
            self.n_cut += 1

    def hole(self) -> None:
        """Steps were lost in which it may or may not have got tokens."""
        if self._run is not None:
            self._run.is_exact = False

    def preempt(self, at_ns: int) -> None:
        """It was put back to the queue."""
        self.n_preemptions += 1
        if self._is_in_prefill:
            self._is_in_prefill = False
            last, n_prompt = self.prefills[-1].chunks[-1], self.fields.get("input_tokens")
            is_through = isinstance(n_prompt, int) and last.n_context + last.n_tokens >= n_prompt
            self.prefills[-1].is_cut = not is_through
        self._token_end_ns = None
        self._waits_since_ns, self.reason = at_ns, "preempted"

    def end(self, at_ns: int) -> None:
        """The engine is done with it."""
        self.ended_ns = at_ns

    @property
    def is_decoding(self) -> bool:
        """Whether it is in a run of decode steps."""
        return self._run is not None

    def _end_wait(self, at_ns: int) -> None:
        since_ns, self._waits_since_ns = self._waits_since_ns, None
        if since_ns is not None and len(self.waits) < MAX_RUNS:
            self.waits.append(Wait(since_ns, max(since_ns, at_ns), self.reason))

    # --- what is known of it ------------------------------------------------------------------

    def close(self, last_step: int, last_end_ns: int) -> None:
        """Ends what is open: no further step will tell of it."""
        self.leave(last_step, last_end_ns)
        if self.ended_ns is not None:
            self._end_wait(self.ended_ns)

    @property
    def n_output(self) -> int | None:
        """Tokens generated, as the engine said or as steps tell; None if neither does."""
        told = self.fields.get("output_tokens")
        if isinstance(told, int):
            return told
        if not all(run.is_exact for run in self.runs):
            return None
        n_runs = sum(run.last_step - run.first_step + 1 + run.n_extra for run in self.runs)
        return n_runs + len(self._whole_prefills) if n_runs else None

    @property
    def n_cached(self) -> int | None:
        """Prompt tokens that were not computed since their KV was there."""
        told = self.fields.get("cached_tokens")
        if isinstance(told, int):
            return told
        for prefill in self.prefills:
            return prefill.chunks[0].n_context if prefill.chunks else None
        return None

    @property
    def first_token_ns(self) -> int | None:
        """When its first token was known to the host, monotonic; None if there was none."""
        if not self.n_output and not self.runs:
            return None
        prefills, runs = self._whole_prefills, self.runs
        if prefills and (not runs or prefills[0].chunks[0].step < runs[0].first_step):
            return prefills[0].chunks[-1].end_ns
        return runs[0].first_end_ns if runs else None

    @property
    def last_token_ns(self) -> int | None:
        """When its last token was, monotonic."""
        if not self.runs:
            return self.first_token_ns
        last_ns, prefills = self.runs[-1].end_ns, self._whole_prefills
        if prefills and prefills[-1].chunks[0].step > self.runs[-1].last_step:
            last_ns = max(last_ns, prefills[-1].chunks[-1].end_ns)
        return last_ns

    @property
    def _whole_prefills(self) -> list[Prefill]:
        return [prefill for prefill in self.prefills if not prefill.is_cut]

    # --- as spans -----------------------------------------------------------------------------

    def rows(
        self, trace_id: int, parent_id: int, weight: float | None, new_id: Callable[[], int]
    ) -> Iterator[Row]:
        """Yields its spans; of one that has not ended, those of its phases that have.

        Args:
            trace_id: of its trace.
            parent_id: its request's span, or the caller's, or 0.
            weight: how many requests it stands for; None is one.
            new_id: makes span ids.
        """

        def row(parent: int, name: str, start_ns: int, end_ns: int, keys: Attributes) -> Row:
            return Row(
                trace_id, new_id(), parent, name, names.KIND_INTERNAL, start_ns + self.offset_ns,
                max(start_ns, end_ns) + self.offset_ns, keys, False, self.resource,
            )  # fmt: skip

        if self.ended_ns is not None:
            end_ns = max([self.ended_ns, *(run.end_ns for run in self.runs[-1:])])
            attributes = self._attributes(weight)
            own = row(parent_id, names.SPAN_ENGINE_REQUEST, self.queued_ns, end_ns, attributes)
            yield own._replace(span_id=self.span_id, is_error=names.ERROR_TYPE in attributes)
        for wait in self.waits:
            keys = attributes_of({names.QUEUE_REASON: wait.reason})
            yield row(self.span_id, names.SPAN_QUEUE, wait.start_ns, wait.end_ns, keys)
        for prefill in self.prefills:
            chunks = prefill.chunks
            keys = {
                names.PREFILL_TOKENS: prefill.n_tokens,
                names.PREFILL_RECOMPUTE: prefill.is_recompute,
            }
            parent = row(
                self.span_id, names.SPAN_PREFILL, chunks[0].start_ns, chunks[-1].end_ns, keys
            )
            is_open = self.ended_ns is None and self._is_in_prefill
            if not (is_open and prefill is self.prefills[-1]):
                yield parent
            for chunk in chunks:
                keys = {
                    names.STEP_INDEX: chunk.step,
                    names.CHUNK_TOKENS: chunk.n_tokens,
                    names.CHUNK_CONTEXT: chunk.n_context,
                }
                yield row(
                    parent.span_id, names.SPAN_PREFILL_CHUNK, chunk.start_ns, chunk.end_ns, keys
                )
        for run in self.runs:
            keys = {names.DECODE_FIRST_STEP: run.first_step, names.DECODE_LAST_STEP: run.last_step}
            if run.is_exact:
                keys[names.DECODE_TOKENS] = run.last_step - run.first_step + 1 + run.n_extra
            yield row(self.span_id, names.SPAN_DECODE, run.start_ns, run.end_ns, keys)

    def _attributes(self, weight: float | None) -> Attributes:
        told = self.fields.get
        reason = told("finish_reason")
        return attributes_of(
            {
                names.ENGINE_ID: self.engine_id,
                names.ENGINE_EPOCH: self.epoch_ns,
                names.REQUEST_INDEX: self.index,
                names.SEQUENCE: told("sequence", 0),
                names.ROLE: told("role"),
                names.REQUEST_ID: self.request_id,
                names.REQUEST_MODEL: told("model"),
                names.PREEMPTIONS: self.n_preemptions,
                names.USAGE_INPUT_TOKENS: told("input_tokens"),
                names.USAGE_OUTPUT_TOKENS: self.n_output,
                names.USAGE_CACHED_TOKENS: self.n_cached,
                names.FINISH_REASONS: None if reason is None else [reason],
                names.ERROR_TYPE: told("error_type"),
                names.SAMPLE_WEIGHT: weight,
            }
        )
