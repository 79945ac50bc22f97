"""Seeded jobs that do everything at random and compare every result with NumPy: ``ci/soak``.

``generate`` makes the script of a job from its plan, purely, so that all ranks make the same one.
``play`` executes it on one rank, ``job`` starts the ranks and watches over them.
"""
