"""The log of a run as a page: the HTML, its script and style, and the numbers of its charts.
"""
