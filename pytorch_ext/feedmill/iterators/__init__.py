"""The iterators behind a DataLoader: native, hybrid and replay, and what they share.

May import: collate, engine, planner, profiling, system.
"""
