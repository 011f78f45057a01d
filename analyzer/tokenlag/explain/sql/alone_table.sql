create or replace temp table alone (
    request_key integer, alone_prefill_ms double, alone_itl_ms double, alone_ttft_ms double,
    alone_e2e_ms double, alone_basis varchar
);
