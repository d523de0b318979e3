"""Packs: image datasets in tar shards, with an index for random access to every sample.

May import: system, planner, remote.

``index`` defines and reads the index file, ``building`` makes indices; ``tars`` reads and writes
tar files, ``objects`` reads both from object stores, ``grouping`` finds the samples in tar files.
To make a pack, ``source`` lists the samples, ``writer`` writes the shards, each with its own index,
and ``joining`` joins these indices into one. ``on_ray`` has the shards written by the nodes of a
Ray cluster, each of which runs ``node``. ``shards`` is the base of the datasets ``Pack`` (in
``dataset``) and ``WebDataset`` (in ``webdataset``). ``mapped`` maps index files, and
``folder_attributes`` has ImageFolder's attributes, also for ``feedmill.Index``. Only
``folder_attributes``, ``shards`` and the datasets need torch.
"""
