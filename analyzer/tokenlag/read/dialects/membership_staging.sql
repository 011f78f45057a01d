create table staging.m_listed (
    lineage bigint, request_index bigint, first_step bigint, last_step bigint
);
create table staging.m_unknown (lineage bigint, first_step bigint, last_step bigint);
