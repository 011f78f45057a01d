-- Culprit → victims → time, the worst first; what is under half a percent of all is left out.
select culprit_id as culprit, culprit_tenant as tenant,
       case kind when 'stream' then 'streams held up' else 'requests kept waiting' end as harm,
       n_prompt as prompt_tokens, n_victims as victims,
       round(effect_ms / 1000, 2) as total_s, round(hold_ms / 1000, 3) as each_up_to_s,
       round(worst_gap_ms / 1000, 3) as worst_s, n_steps as steps, replace(mode, '_', '-') as scheduling,
       strftime(make_timestamp_ns(from_ns), '%H:%M:%S.%g') as "from (UTC)"
from blame
where window_name = 'current'
qualify effect_ms >= 0.005 * sum(effect_ms) over ()
order by effect_ms desc, culprit_id
limit 40
