"""Measures what loaders do and what steps wait for, and reports it.

``counting`` keeps the records, ``report`` has Stats and evaluates them, ``log`` writes and reads
log files, ``page`` renders a log as HTML, and ``watching`` measures loaders of other libraries.

May import: deferred, system.
"""
