"""Facts and counters of the machine, of this process and of other feedmill processes.

May import: no other subpackage.
"""
