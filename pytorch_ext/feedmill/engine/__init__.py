"""The native loaders (engines) of a DataLoader: pool, configuration, memory, devices.

May import: collate, planner, profiling, remote, system.
"""
