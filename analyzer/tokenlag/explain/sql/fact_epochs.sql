-- Engine runs that served the requests in hand.
select distinct epoch_key from request_facts where epoch_key is not null order by 1;
