describe table ${TABLE}
