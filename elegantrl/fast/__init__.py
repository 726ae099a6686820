"""Faster implementations of results that other packages define: gradients derived by hand, policies in NumPy.

The rest of the library imports these modules only by ``imports.import_fast``: without this package everything works
as before, up to rounding and speed. This file imports nothing, so that a worker that acts loads no agent.
"""
