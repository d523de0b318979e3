"""Runs in the process of a recorded script. sitecustomize.py beside it imports it."""
