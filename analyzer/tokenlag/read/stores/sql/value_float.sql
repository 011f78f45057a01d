if(isFinite(toFloat64OrNull(trimBoth(${RAW}))), toFloat64OrNull(trimBoth(${RAW})), null)
