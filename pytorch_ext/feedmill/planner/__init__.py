"""Decides whether a DataLoader can run natively. If it can, makes the plan of its transform for the
native loader, and looks up its samples.

``recognise`` decides about a DataLoader, ``datasets`` about its dataset, ``transforms`` about its
transform, ``sampling`` how far ahead its sampler may be advanced.

May import: remote.
"""
