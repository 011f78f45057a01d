-- Steps of one engine run in the current window, with the host's gap before them.
select s.end_ns, s.cadence_ms + coalesce(case when s.n_decode > 0 then least(s.idle_ms, s.cadence_ms) end, 0) as wall_ms,
       s.n_prefill_tokens, s.n_decode, s.attention_work, coalesce(s.n_context_tokens, 0) as n_context_tokens,
       s.n_new_tokens, s.n_drafted
from steps s join epochs e using (epoch_key) join windows w using (dataset)
where s.epoch_key = ? and w.name = 'current' and s.end_ns >= w.from_ns and s.end_ns < w.to_ns
  and not s.is_after_hole
order by s.step_index;
