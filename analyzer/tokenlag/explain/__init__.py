"""The maths: canonical tables in, derived tables out.

Arrays in, arrays out in each module; `explain.run` alone moves them from and to the
store. Imports only from `errors`, `window`, `store` and `read`.
"""
