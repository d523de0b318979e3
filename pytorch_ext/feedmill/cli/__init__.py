"""The command ``feedmill``: a file for each of its commands, and what only those need.

May import: all subpackages, and the loader.
"""
