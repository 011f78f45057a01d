-- What the window's requests have: how many spans there are, and which keys.
select
    count() as n,
    countIf(not match(TraceId, '^[0-9a-fA-F]{32}$') or not match(SpanId, '^[0-9a-fA-F]{16}$')) as n_without_ids,
    arraySort(groupUniqArrayArray(arrayIntersect(${SPAN_KEYS}, {span_keys:Array(String)}))) as span_keys,
    arraySort(groupUniqArrayArray(arrayIntersect(${RESOURCE_KEYS}, {resource_keys:Array(String)}))) as resource_keys,
    ${N_EVENTS} as n_events,
    ${N_LINKS} as n_links
from ${TABLE} as t
where ${OF_REQUESTS}
