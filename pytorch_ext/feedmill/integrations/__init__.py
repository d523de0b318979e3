"""Integration with libraries that build DataLoaders themselves: Hugging Face Accelerate.

May import: system.
"""
