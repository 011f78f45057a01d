-- Turns of a conversation (or requests with one prompt head): what the longest earlier prompt
-- of the group could have lent, and what was lent. A turn can share at most the whole earlier
-- prompt; answers that are fed back would add to it, so this is a lower bound.
insert into reuse
with turns as (
    select f.request_key, f.window_name, f.conversation_id as group_id, 'conversation' as basis,
           f.arrival_ns, f.n_prompt, coalesce(f.n_cached, 0) as n_cached
    from request_facts f
    where f.conversation_id is not null and f.n_prompt is not null and f.n_cached is not null
),
numbered as (
    select *,
           row_number() over w - 1 as turn,
           max(n_prompt) over (partition by window_name, group_id order by arrival_ns, request_key
                               rows between unbounded preceding and 1 preceding) as longest_before
    from turns
    window w as (partition by window_name, group_id order by arrival_ns, request_key)
)
select request_key, window_name, group_id, basis, turn, n_prompt,
       least(longest_before, n_prompt), n_cached
from numbered
where turn > 0;
