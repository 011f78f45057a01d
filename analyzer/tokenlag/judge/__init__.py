"""From tables to causes: rules as files, the box their SQL runs in, ranking and the verdict.

May import errors, window, store, read and explain; never report, pipeline or cli. Nothing
heavy is imported before a rule is run.
"""
