"""How to learn: one file per algorithm and one per family. Nothing here knows of environments, processes or files."""
