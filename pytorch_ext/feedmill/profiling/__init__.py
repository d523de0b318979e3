"""Counts what loaders do and what steps wait for, and explains it.

``counting`` keeps the records, ``report`` draws conclusions from them, ``log`` and ``page`` write
them to files, and ``watching`` counts loaders that are not ours.

May import: system.
"""
