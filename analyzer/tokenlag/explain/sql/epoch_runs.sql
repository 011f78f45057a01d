-- The runs of decode steps of one epoch.
select request_index, first_step, last_step from memberships where epoch_key = ?
