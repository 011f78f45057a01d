-- Demand by window.
select window_name, span_s, n_requests, is_closed_loop from demand;
