"""Packs: image sets in tar shards, with an index by which any sample is read at once.

May import: system, planner.

``index`` is the file format, ``building`` makes indices; ``tars`` reads and writes tar files,
``grouping`` finds the samples in them. ``source`` finds what is to be packed, ``writer`` writes
shards, ``joining`` the one index over them. ``shards`` is what the datasets ``Pack`` (``dataset``)
and ``WebDataset`` (``webdataset``) share; only these three need torch.
"""
