"""Counters of a loader: records of steps and samples, and the accounts that keep them.
"""
