multiIf(
    dynamicType(${PATH}) = 'None', null,
    startsWith(dynamicType(${PATH}), 'Array'), toJSONString(${PATH}),
    toString(${PATH})
)
