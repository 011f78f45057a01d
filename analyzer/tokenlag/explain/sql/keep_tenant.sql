-- Only one group's requests.
delete from request_facts where tenant is distinct from ?;
