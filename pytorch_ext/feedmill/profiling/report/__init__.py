"""From counters to words: Stats, and what they say of bottlenecks, targets and problems.
"""
