-- The rows of requests.

insert into requests by name
select
    k.request_key, ${dataset} as dataset, m.request_id, m.trace_id, m.dialects, m.operation, m.model,
    m.tenant, m.prefix_id, m.conversation_id, m.features, m.adapter, m.priority, m.n_choices,
    m.n_max_output, m.n_prompt, m.n_cached, m.n_output, m.intended_ns,
    coalesce(m.sent_ns, m.network_ns) as sent_ns, m.arrival_ns, m.engine_ns, m.scheduled_ns,
    m.prefilled_ns, m.first_token_ns, m.final_ns as last_token_ns, m.end_ns,
    m.client_first_ns, m.client_end_ns, m.client_gap_p50_ms, m.client_gap_max_ms,
    m.n_client_chunks,
    case
        when m.is_prefill_only then null
        when m.is_client_only then (m.client_first_ns - m.sent_ns) / 1e6
        when m.first_token_ns is not null then coalesce(m.told_ttft_ms, (m.first_token_ns - m.arrival_ns) / 1e6)
    end as ttft_ms,
    case
        when m.is_prefill_only then null
        when m.is_client_only then case when m.client_first_ns is not null then 'measured' end
        when m.first_token_ns is not null
            then case when m.told_ttft_ms is not null then 'measured' else 'derived' end
    end as ttft_origin,
    coalesce(m.e2e_ms, (m.end_ns - m.arrival_ns) / 1e6) as e2e_ms,
    coalesce(m.e2e_origin, case when m.end_ns is not null then 'measured' end) as e2e_origin,
    case when per_stream >= 2 and m.final_ns >= m.first_token_ns
        then (m.final_ns - m.first_token_ns) / 1e6 / (per_stream - 1)
        when m.is_client_only and per_stream >= 2 and m.client_end_ns >= m.client_first_ns and not m.is_aborted
        then (m.client_end_ns - m.client_first_ns) / 1e6 / (per_stream - 1) end as tpot_ms,
    m.n_preemptions, m.n_computed, m.finish_reason, m.error_type, m.is_aborted,
    m.is_censored as is_open, m.is_prefill_only, coalesce(m.weight, 1) as weight
from (
    select *, case when coalesce(n_choices, 1) > 1 then coalesce(n_longest, n_output / n_choices)
        else n_output end as per_stream
    from m_requests
) m
join m_request_keys k using (gid);

insert into hops by name
select k.request_key, h.gateway, h.instance, h.start_ns, h.upstream_ns, h.upstream_end_ns, h.end_ns
from st_hops h join m_groups g on g.rid = h.top join m_request_keys k on k.gid = g.gid;
