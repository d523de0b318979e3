"""The iterators of a DataLoader: native, hybrid and replay, and their common parts.

May import: collate, deferred, engine, handover, planner, profiling, remote,
system.
"""
