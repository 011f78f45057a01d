-- What reading the streams' KV takes, at another price for a context token.
update step_costs
set context_ms = ? * s.n_context_tokens
from steps s
where s.epoch_key = step_costs.epoch_key and s.step_index = step_costs.step_index
  and list_contains(?, step_costs.epoch_key);
