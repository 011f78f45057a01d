-- What the window's steps have, and from which one on the list of members can be carried: the
-- last full list before the window.
select
    count() as n,
    greatest(
        {from_ns:Int64} - {lead_ns:Int64},
        (
            select toUnixTimestamp64Nano(min(last_list)) from (
                select ${ENGINE} as engine, max(Timestamp) as last_list
                from ${TABLE} as t
                where SpanName = {step_name:String}
                    and Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {lead_ns:Int64})
                    and Timestamp < fromUnixTimestamp64Nano({from_ns:Int64})
                    and ${MEMBERS} != '' and ${OF_ENGINES}
                group by engine
            )
        )
    ) as carried_from_ns,
    arraySort(groupUniqArrayArray(arrayIntersect(${SPAN_KEYS}, {span_keys:Array(String)}))) as span_keys,
    arraySort(groupUniqArrayArray(arrayIntersect(${RESOURCE_KEYS}, {resource_keys:Array(String)}))) as resource_keys
from ${TABLE} as t
where SpanName = {step_name:String}
    and Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {lead_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64})
    and ${OF_ENGINES}
