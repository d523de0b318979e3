"""Other libraries' own ways to build loaders: Hugging Face Accelerate.

May import: system.
"""
