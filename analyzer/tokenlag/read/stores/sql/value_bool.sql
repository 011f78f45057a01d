multiIf(
    lower(trimBoth(${RAW})) in ('true', '1', 'yes'), true,
    lower(trimBoth(${RAW})) in ('false', '0', 'no'), false,
    null
)
