"""Chooses the path of each epoch, and checks the options of a DataLoader.

May import: collate, engine, iterators, planner, profiling, remote,
system.
"""
