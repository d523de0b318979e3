"""What the machine, this process and the processes beside it are and do, read from the kernel.

May import: no other subpackage.
"""
