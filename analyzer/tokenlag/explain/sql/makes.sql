-- What an engine's price for a batch depends on, where it is told: one row an epoch.
select e.epoch_key, e.model_name, e.device_name, e.n_devices, e.n_tensor_parallel, e.n_pipeline_parallel,
       (select any_value(s.role) from sequences s where s.epoch_key = e.epoch_key) as role
from epochs e;
