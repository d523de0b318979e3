"""Whether a DataLoader's dataset, transforms and samplers are ones that the native path can stand
in for, and what they come to: the plan, and the samples.

May import: no other subpackage.
"""
