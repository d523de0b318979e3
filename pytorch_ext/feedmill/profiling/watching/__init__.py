"""Measures loaders from outside: torch's own iterators, any loader, and all loaders of a process.
"""
