mapKeys(${HELD})
