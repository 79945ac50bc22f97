"""A FUSE file system over versions of weights, without libfuse.

The server speaks the kernel's protocol on /dev/fuse itself. So any thread can answer a request,
also a watchdog when the thread that serves it is stuck; a version's inodes are never those of
another one; and data go from the buffer that a one-sided read fills to the kernel without a copy in
between.
"""
