"""Names of images that are read over the network: s3://, gs://, http:// and https://, and those
that fsspec reads.

``names`` says which paths are such names, ``credentials`` finds the keys of a store, ``settings``
reads the environment, ``process`` has this process's connection, ``by_fsspec`` reads what libcurl
can't, and ``sources`` opens files and remote objects alike. ``uploads`` writes to s3:// and gs://,
``fsspec_uploads`` to other stores.

May import: system.
"""
