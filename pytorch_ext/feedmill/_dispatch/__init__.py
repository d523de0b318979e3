"""Chooses the path of each iteration, and checks the options of a DataLoader.

May import: collate, engine, iterators, planner, profiling, system.
"""
