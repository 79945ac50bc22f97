"""A FUSE file system over versions of weights.

mfusepy, a binding of libfuse3, speaks with the kernel and calls :class:`FileSystem`. libfuse's
high-level interface names files by paths, and answers each request in one of a few threads.
"""
