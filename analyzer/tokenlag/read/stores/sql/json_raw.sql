ifNull(multiIf(
    dynamicType(${PATH}) = 'None', '',
    startsWith(dynamicType(${PATH}), 'Array'), toJSONString(${PATH}),
    toString(${PATH})
), '')
