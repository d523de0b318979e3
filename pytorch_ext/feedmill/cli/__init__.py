"""The command line ``feedmill``: a file for each command, and code that only commands need.

May import: all subpackages, and the loader.
"""
