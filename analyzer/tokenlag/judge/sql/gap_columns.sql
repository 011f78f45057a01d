-- Gaps between tokens, by size, with how many streams saw each.
select gap_ms, sum(n_streams) as n, sum(n_streams * greatest(gap_ms - own_ms, 0)) as excess_ms
from gaps
where window_name = ?
group by gap_ms
order by gap_ms;
