"""Indexes of images in buckets and folders: ``feedmill.Index``, and what ``feedmill index`` does.

``format`` defines and reads the index file, ``building`` writes it. ``listing`` lists buckets,
``by_fsspec`` what fsspec reads, and ``folders`` folders; ``threads`` runs listings in parallel.
``classes`` finds classes, and ``tables`` reads labels from CSV and Parquet files. ``dataset`` has
the dataset; only it needs torch.

May import: packing, planner, remote.
"""
