-- Only one group's requests.
delete from request_facts where engine_id is distinct from ?;
