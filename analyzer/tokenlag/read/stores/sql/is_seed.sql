-- A span that is told of as a request, or is a phase of one; those below it come by its trace.
(
    SpanName in {request_names:Array(String)}
    or match(SpanName, {patterns:String})
    or (lower(SpanKind) in ('client', 'span_kind_client') and (${OPERATION} != '' or ${MODEL} != ''))
)
