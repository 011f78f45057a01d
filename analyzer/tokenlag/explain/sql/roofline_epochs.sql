-- Engine runs of the current window that say what they read and on what.
select distinct e.epoch_key, e.engine_id, e.weight_bytes, e.kv_bytes_per_token,
       coalesce(e.n_active_parameters, e.n_parameters) as n_active_parameters,
       e.device_name, coalesce(e.n_devices, e.n_tensor_parallel) as n_devices, e.memory_bandwidth, e.peak_flops
from epochs e join step_costs c using (epoch_key)
where c.window_name = 'current' and e.weight_bytes is not null
  and (e.memory_bandwidth is not null or e.device_name is not null)
order by e.epoch_key;
