"""Counting loaders from outside: torch's own iterators, anybody's loader, and all of a process.
"""
