coalesce(
    toInt64OrNull(trimBoth(${RAW})),
    -- A whole number that was written as a fraction, as "12.0".
    if(abs(toFloat64OrNull(trimBoth(${RAW}))) < 9.2e18
        and toFloat64OrNull(trimBoth(${RAW})) = trunc(toFloat64OrNull(trimBoth(${RAW}))),
        accurateCastOrNull(toFloat64OrNull(trimBoth(${RAW})), 'Int64'), null)
)
