-- Only one group's requests.
delete from request_facts where shape_of(n_prompt, n_output) is distinct from ?;
