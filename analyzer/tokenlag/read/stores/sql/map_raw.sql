${HELD}[${KEY}]
