-- Traces that an engine's own spans are in, or that tell of a request of theirs by its id: the
-- two sides may be traces of their own.
(
    TraceId global in (
        ${BY_TRACE}
    )
    or ${REQUEST_ID} global in (
        ${BY_ID}
    )
)
