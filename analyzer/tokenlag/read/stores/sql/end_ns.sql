toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)
