-- A list as JSON, or parted by commas. Empty: there is none.
if(startsWith(trimBoth(${RAW}), '['),
    arrayMap(
        item -> if(startsWith(item, '"'), JSONExtractString(item), item),
        JSONExtractArrayRaw(trimBoth(${RAW}))),
    arrayFilter(item -> item != '', arrayMap(item -> trimBoth(item), splitByChar(',', ${RAW}))))
