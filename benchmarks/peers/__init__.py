"""The loaders that bench_peers.py compares, one module each.

A module of a loader has

    VERSIONS                     names of the distributions whose versions the report lists
    prepare(job, variant)        optional: makes data in the loader's own format, unless they exist;
                                 returns the {"seconds", "bytes"} that this took
    note(job, variant)           optional: a remark about this run for the table
    open_epochs(job, variant)    opens the loader; each call of the result iterates over the
                                 batches of one epoch
    open_check(job, variant)     the same for the job whose pixels are compared: each file once, in
                                 order, the whole image resized to the output's size

A batch is a float32 array or tensor, N x 3 x size x size. The module is imported only by the
process that runs this loader (worker.py), in the loader's own virtual environment.
"""
