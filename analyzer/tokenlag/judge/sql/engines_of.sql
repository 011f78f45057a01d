-- Engines that the window's requests and steps name.
select distinct engine_id from (
    select engine_id from request_facts where window_name = 'current' and engine_id is not null
    union
    select e.engine_id from epochs e
    where e.epoch_key in (select epoch_key from step_costs where window_name = 'current'))
order by 1;
