-- The prompt chunks of one epoch.
select request_index, step_index, n_tokens, n_context from chunks
where epoch_key = ? order by step_index
