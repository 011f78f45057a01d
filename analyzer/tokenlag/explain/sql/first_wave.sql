-- Marks the requests of `first_wave_keys`.
update request_facts set is_first_wave = true
where request_key in (select request_key from first_wave_keys);
