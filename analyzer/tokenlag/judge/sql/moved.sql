-- Differences of means with their intervals.
select metric, factor, baseline, current, effect_ms, lo_ms, hi_ms from changes;
