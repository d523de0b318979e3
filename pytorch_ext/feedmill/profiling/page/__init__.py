"""Renders the log of a run as an HTML page.
"""
