"""The native loaders behind one DataLoader: pool, configuration, memory, devices.

May import: collate, planner, profiling, system.
"""
