-- Spans of gateways and routers in front of servers: when each received a request, when it sent
-- it on, when it was done. `is_end`: the inner span is the gateway's own work, after which it
-- sends; else it is the call itself.

create table staging.w_known as
select * from (values
    ('litellm', '^Received Proxy Server Request$', '^(litellm_request|raw_gen_ai_request|chat .*|text_completion .*)$', false),
    ('production-stack', '^router /', '^process_request$', false),
    ('llm-d', '^gateway\.request$', '^gateway\.request_orchestration$', true),
    ('llm-d-sidecar', '^(forward_request|llm_d\.pd_proxy\.request)$', '^(prefill|decode|llm_d\.pd_proxy\.(prefill|decode))$', false),
    ('dynamo-frontend', '^http-request$', '^(handle_payload|engine\.generate)$', false),
    ('dynamo-frontend', '^http-request$', '^(router\.route_request|kv_router\.route_request|prefill_routing)$', true)
) as known(gateway, outer_name, inner_name, is_end);

create table staging.w_gate as
select hash(s.trace_id, s.span_id) as rid, hash(s.trace_id) as tid,
    case when nullif(s.parent_id, '') is not null then hash(s.trace_id, s.parent_id) end as pid,
    s.trace_id, s.start_ns, case when s.end_ns >= s.start_ns then s.end_ns end as end_ns, s.status_code,
    coalesce(s.request_model, s.response_model, s.router_model, s.plain_model) as model, s.operation_name,
    -- The server's answer names its request; the gateway's own number says it to nobody else.
    coalesce(s.response_id, s.request_id, s.router_request_id, s.x_request_id) as request_id,
    coalesce(s.usage_input_tokens, s.prompt_tokens, s.plain_input_tokens) as n_prompt,
    coalesce(s.usage_output_tokens, s.completion_tokens, s.plain_output_tokens) as n_output,
    s.finish_reasons, s.error_type, s.tenant, s.scope, s.res_host_name as host,
    coalesce(s.res_service_instance_id, s.res_host_name, s.res_service_name) as instance, k.gateway
from spans s join (select distinct gateway, outer_name from w_known) k on regexp_matches(s.name, k.outer_name)
where s.start_ns is not null;

-- Spans that a gateway's own names say, and whatever hangs directly under it.
create table staging.w_span as
select hash(trace_id, span_id) as rid,
    case when nullif(parent_id, '') is not null then hash(trace_id, parent_id) end as pid,
    name, start_ns, case when end_ns >= start_ns then end_ns end as end_ns,
    coalesce(request_model, response_model, plain_model) as model, operation_name,
    coalesce(response_id, request_id) as request_id,
    coalesce(usage_input_tokens, prompt_tokens, plain_input_tokens) as n_prompt,
    coalesce(usage_output_tokens, completion_tokens, plain_output_tokens) as n_output,
    finish_reasons, tenant
from spans
where start_ns is not null and name not in (${SPAN_REQUEST}, ${SPAN_ENGINE_REQUEST}, 'llm_request')
  and (regexp_matches(name, (select string_agg(distinct inner_name, '|') from w_known where inner_name not like '%chat%'))
       or name in ('litellm_request', 'raw_gen_ai_request')
       or hash(trace_id, nullif(parent_id, '')) in (select rid from w_gate));

-- What lies within each: a call may hang under another span of the gateway's own.
create table staging.w_within as
with recursive below(rid, gate) as (
    select rid, rid from w_gate
    union all
    select s.rid, b.gate from w_span s join below b on s.pid = b.rid
    where s.rid not in (select rid from w_gate)
)
select rid, gate from below;

create table staging.w_sent as
select w.gate,
    min(case when k.is_end then s.end_ns else s.start_ns end) as upstream_ns,
    max(case when not k.is_end then s.end_ns end) as upstream_end_ns,
    arg_min(s.rid, s.start_ns) filter (not k.is_end) as call_rid
from w_within w join w_gate g on g.rid = w.gate join w_span s on s.rid = w.rid and s.rid <> w.gate
join w_known k on k.gateway = g.gateway and regexp_matches(s.name, k.inner_name)
-- The call where there is one; the gateway's own work where only that is told.
group by w.gate, k.is_end
qualify row_number() over (partition by w.gate order by k.is_end) = 1;

-- Where a gateway stands behind another, or behind a client's span, the outermost is what the
-- user saw.
create table staging.w_top as
with recursive up(rid, gate, depth) as (
    select rid, rid, 0 from w_gate
    union all
    select u.rid, w.gate, u.depth + 1
    from up u join w_gate o on o.rid = u.gate join w_within w on w.rid = o.pid
    where u.depth < 20
),
outermost as (select rid, arg_max(gate, depth) as gate from up group by rid)
select o.rid, coalesce(c.top, o.gate) as top
from outermost o join w_gate g on g.rid = o.gate left join g_chain c on c.rid = g.pid;

insert into st_hops
select g.rid, t.top, g.gateway, g.instance, g.start_ns, case when s.upstream_ns >= g.start_ns then s.upstream_ns end,
    s.upstream_end_ns, g.end_ns
from w_gate g join w_top t using (rid) left join w_sent s on s.gate = g.rid;

-- The gateway's own call, where it wrote it as a client's span, is no request of its own; what
-- it knows of the request goes to the gateway's.
create table staging.w_call as
select g.rid, any_value(r.model) as model, any_value(r.request_id) as request_id, max(r.n_prompt) as n_prompt,
    max(r.n_output) as n_output, max(r.n_cached) as n_cached, min(r.client_first_ns) as first_ns,
    max(r.n_max_output) as n_max_output, any_value(r.tenant) as tenant, any_value(r.finish_reason) as finish_reason
from w_gate g join w_within w on w.gate = g.rid join st_requests r on r.rid = w.rid
group by g.rid;

delete from st_requests where trust = 9 and rid in (select rid from w_within where rid <> gate);
update g_chain set top = t.top
from w_within w join w_top t on t.rid = w.gate
where g_chain.top = w.rid;
delete from g_chain where rid in (select rid from w_within);

insert into g_chain
select w.rid, t.top from w_within w join w_top t on t.rid = w.gate;

insert into st_requests by name
select
    g.rid, g.gateway as dialect, 9 as trust, g.tid, g.pid, g.trace_id,
    coalesce(c.request_id, i.request_id, g.request_id) as request_id,
    coalesce(i.operation_name, g.operation_name, 'chat') as operation,
    coalesce(c.model, i.model, g.model) as model, coalesce(c.n_prompt, i.n_prompt, g.n_prompt) as n_prompt,
    coalesce(c.n_output, i.n_output, g.n_output) as n_output, c.n_cached, c.n_max_output,
    coalesce(c.tenant, i.tenant, g.tenant) as tenant,
    g.start_ns as sent_ns, c.first_ns as client_first_ns, g.end_ns as client_end_ns,
    coalesce(c.finish_reason, array_to_string(list_distinct(coalesce(i.finish_reasons, g.finish_reasons)), ',')) as finish_reason,
    g.error_type, coalesce(g.status_code = ${STATUS_ERROR}, false) as is_error, g.end_ns is null as is_open,
    g.host, g.scope
from w_gate g join w_top t on t.rid = g.rid and t.top = g.rid
left join w_call c on c.rid = g.rid
left join w_sent s on s.gate = g.rid
left join w_span i on i.rid = s.call_rid;
