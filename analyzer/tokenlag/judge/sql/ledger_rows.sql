-- Where the streams' time between tokens went, term by term; the shares sum to 1.
with total as (select sum(n_streams * gap_ms) as ms from gaps where window_name = 'current'),
terms as (
    select unnest([
        {'place': 1, 'term': 'alone: the own step with nobody beside it', 'ms': sum(n_streams * alone_ms)},
        {'place': 2, 'term': 'batch: the other streams in it', 'ms': sum(n_streams * batch_ms)},
        {'place': 3, 'term': 'context: reading the KV of the batch', 'ms': sum(n_streams * context_ms)},
        {'place': 4, 'term': 'prompts of others', 'ms': sum(n_streams * prefill_ms)},
        {'place': 5, 'term': 'skipped: steps it was left out of', 'ms': sum(n_streams * skipped_ms)},
        {'place': 6, 'term': 'host: between steps', 'ms': sum(n_streams * host_ms)},
        {'place': 7, 'term': 'not explained by the model', 'ms': sum(n_streams * residual_ms)}
    ]) as t
    from gaps where window_name = 'current'
)
select t.term as "time between tokens", round(t.ms / 1000, 2) as stream_s, round(t.ms / total.ms, 4) as share
from terms, total
order by t.place
