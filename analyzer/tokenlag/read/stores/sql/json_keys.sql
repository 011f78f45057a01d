JSONAllPaths(${HELD})
