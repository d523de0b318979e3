"""Stats, and the report on them: the verdict, targets and problems.
"""
