if(mapContains(${HELD}, ${KEY}), ${HELD}[${KEY}], null)
