create or replace temp table behind (request_key integer, behind_ms double, behind_key integer);
