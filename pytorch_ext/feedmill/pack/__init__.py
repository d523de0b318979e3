"""Packs: image sets in tar shards, with an index by which any sample is read at once.

May import: recognition.

``index`` is the file format, ``tars`` reads tar files, ``source`` finds what is to be packed,
``writer`` writes shards and ``joining`` the index over them; ``shards`` is what the datasets ``Pack``
and ``WebDataset`` share.
"""
