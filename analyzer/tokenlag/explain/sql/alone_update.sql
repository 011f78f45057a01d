update request_facts as f
set alone_prefill_ms = a.alone_prefill_ms, alone_itl_ms = a.alone_itl_ms,
    alone_ttft_ms = a.alone_ttft_ms, alone_e2e_ms = a.alone_e2e_ms, alone_basis = a.alone_basis
from alone as a
where f.request_key = a.request_key;
