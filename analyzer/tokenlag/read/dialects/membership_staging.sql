create or replace temp table m_listed (
    lineage bigint, request_index bigint, first_step bigint, last_step bigint
);
create or replace temp table m_unknown (lineage bigint, first_step bigint, last_step bigint);
