-- A list as JSON, or parted by commas; one that is no number spoils it. Empty: there is none.
arrayMap(
    v -> assumeNotNull(v),
    if(
        arrayExists(v -> isNull(v), arrayMap(
            item -> toInt64OrNull(item),
            if(startsWith(trimBoth(${RAW}), '['),
                arrayMap(item -> trim(both '"' from item), JSONExtractArrayRaw(trimBoth(${RAW}))),
                arrayFilter(item -> item != '', arrayMap(item -> trimBoth(item), splitByChar(',', ${RAW})))))),
        [],
        arrayMap(
            item -> toInt64OrNull(item),
            if(startsWith(trimBoth(${RAW}), '['),
                arrayMap(item -> trim(both '"' from item), JSONExtractArrayRaw(trimBoth(${RAW}))),
                arrayFilter(item -> item != '', arrayMap(item -> trimBoth(item), splitByChar(',', ${RAW}))))))
)
