"""Engine steps as `llm.engine_step` spans, with membership told by changes."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable, Iterator

from tokenlag_tracer import conventions as names

from tokenlag.simulate.log import EpochLog, Step
from tokenlag.simulate.otlp_json import attribute_text
from tokenlag.simulate.run import Run
from tokenlag.simulate.timeline import Timeline, engine_id

TextSpan = tuple[int, int, str]


def ranges(indexes: Iterable[int]) -> str:
    """Return sorted request indexes as the contract's range list: `"101-140,143"`."""
    parts: list[str] = []
    first = last = -1
    for index in indexes:
        if index == last + 1 and first >= 0:
            last = index
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = index
    if first >= 0:
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


@functools.lru_cache(maxsize=64)
def _engine_trace_id(engine: str, epoch_ns: int, window: int) -> str:
    """The trace that an epoch's steps of one window of time share."""
    text = f"{engine}/{epoch_ns}/{window}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class StepEmitter:
    """Turns the steps of a run into spans.

    Args:
        run: the run.
        timeline: places seconds of the run on unix time.
        drop: what to leave out.
        lost_frac: share of step records that get lost (the index shows a hole).
        ids: source of span ids.
        chance: decides which records get lost.
    """

    def __init__(
        self,
        run: Run,
        timeline: Timeline,
        *,
        drop: frozenset[str],
        lost_frac: float,
        ids: random.Random,
        chance: random.Random,
    ) -> None:
        self._run = run
        self._time = timeline
        self._drop = drop
        self._lost_frac = lost_frac
        self._ids = ids
        self._chance = chance

    def spans(self, number: int, log: EpochLog) -> Iterator[TextSpan]:
        """Yield end (unix ns), resource number and text of each step and heartbeat."""
        time = self._time
        epoch_ns = time.epoch_ns(log)
        head = attribute_text(names.ENGINE_EPOCH, epoch_ns)
        if "replica" not in self._drop:
            head = f"{attribute_text(names.ENGINE_ID, engine_id(log))},{head}"
        members: set[int] = set()
        n_dropped, is_list_due = 0, True
        previous_end_ns = time.ns(log.start_s)
        for step in log.steps:
            members.difference_update(step.left)
            members.update(step.joined)
            start_ns, end_ns = time.ns(step.start_s), time.ns(step.end_s)
            yield from self._heartbeats(
                number, head, log, step.index - 1, previous_end_ns, start_ns
            )
            previous_end_ns = end_ns
            if self._lost_frac and step.index and self._chance.random() < self._lost_frac:
                n_dropped += 1
                is_list_due = True  # the reader cannot follow a change it did not see
                continue
            is_full = is_list_due or step.index % names.FULL_LIST_EVERY_STEPS == 0
            is_list_due = False
            body = self._step_text(step, members if is_full else None, n_dropped)
            text = self._step_span_text(log, start_ns, end_ns, f"{head},{body}")
            yield end_ns, number, text
        end_ns = time.ns(
            log.end_s
            if any(later.engine == log.engine for later in self._run.epochs[number + 1 :])
            else self._run.last_instant_s
        )
        yield from self._heartbeats(number, head, log, len(log.steps) - 1, previous_end_ns, end_ns)

    def _step_span_text(self, log: EpochLog, start_ns: int, end_ns: int, attributes: str) -> str:
        window = start_ns // names.ENGINE_TRACE_NS
        trace_id = _engine_trace_id(engine_id(log), self._time.epoch_ns(log), window)
        return (
            f'{{"traceId":"{trace_id}","spanId":"{self._ids.getrandbits(64):016x}",'
            f'"name":"{names.SPAN_ENGINE_STEP}","kind":{names.KIND_INTERNAL},'
            f'"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}",'
            f'"attributes":[{attributes}],"status":{{}}}}'
        )

    def _step_text(self, step: Step, members: set[int] | None, n_dropped: int) -> str:
        drop = self._drop
        parts = [
            attribute_text(names.STEP_INDEX, step.index),
            attribute_text(names.STEP_DECODE_COUNT, step.n_decode),
        ]
        add = parts.append
        if step.chunks:
            requests, tokens, context = zip(*step.chunks, strict=True)
            add(attribute_text(names.STEP_PREFILL_REQUESTS, requests))
            add(attribute_text(names.STEP_PREFILL_TOKENS, tokens))
            add(attribute_text(names.STEP_PREFILL_CONTEXT, context))
        if step.joined:
            add(attribute_text(names.STEP_DECODE_JOINED, ranges(step.joined)))
        if step.left:
            add(attribute_text(names.STEP_DECODE_LEFT, ranges(step.left)))
        if members:
            add(attribute_text(names.STEP_DECODE_REQUESTS, ranges(sorted(members))))
        if step.new_tokens and max(step.new_tokens) > 1:
            add(attribute_text(names.STEP_DECODE_NEW_TOKENS, step.new_tokens))
        if step.n_drafted is not None and step.n_accepted is not None:
            add(attribute_text(names.STEP_DRAFTED, step.n_drafted))
            add(attribute_text(names.STEP_ACCEPTED, step.n_accepted))
        add(attribute_text(names.STEP_CONTEXT_TOKENS, step.n_context))
        if "running" not in drop:
            add(attribute_text(names.STEP_RUNNING, step.n_running))
        if "waiting" not in drop:
            add(attribute_text(names.STEP_WAITING, step.n_waiting))
            add(attribute_text(names.STEP_WAITING_TOKENS, step.n_waiting_tokens))
            add(attribute_text(names.STEP_OLDEST_WAIT_NS, round(step.oldest_wait_s * 1e9)))
        if "kv_usage" not in drop:
            add(attribute_text(names.STEP_KV_USAGE, round(step.kv_frac, 5)))
            if step.kv_reserved_frac is not None:
                add(attribute_text(names.STEP_KV_RESERVED, round(step.kv_reserved_frac, 5)))
        if step.preempted and "preemptions" not in drop:
            add(attribute_text(names.STEP_PREEMPTED, step.preempted))
        if "admit_bound" not in drop:
            add(attribute_text(names.STEP_ADMIT_BOUND, step.admit_bound))
        add(attribute_text(names.STEP_DROPPED, n_dropped))
        return ",".join(parts)

    def _heartbeats(
        self, number: int, head: str, log: EpochLog, index: int, from_ns: int, until_ns: int
    ) -> Iterator[TextSpan]:
        """Yield a step of no length each ten seconds of idleness, with the last step's index."""
        if index < 0:
            return
        beat_ns = from_ns + names.HEARTBEAT_NS
        while beat_ns < until_ns:
            attributes = ",".join(
                (
                    head,
                    attribute_text(names.STEP_INDEX, index),
                    attribute_text(names.STEP_DECODE_COUNT, 0),
                    attribute_text(names.STEP_RUNNING, 0),
                    attribute_text(names.STEP_WAITING, 0),
                )
            )
            yield beat_ns, number, self._step_span_text(log, beat_ns, beat_ns, attributes)
            beat_ns += names.HEARTBEAT_NS
