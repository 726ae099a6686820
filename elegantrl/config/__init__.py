"""Settings: how they are declared, merged, checked and written to a file.

``fields`` is the lowest of these modules: agents declare their settings with it. The others import the agents.
"""
