"""Runs themes one after another in one life of Horovod and saves their records.

Arguments: the folder for the records, and the names of modules in themes/. A theme is run(record,
sets), with all process sets by name; `world` is everybody.
"""

import importlib
import sys
from pathlib import Path

from recording import Record, from_launcher


def overlapping_sets(size):
    """The members of sets that overlap, none of them everybody."""
    named = {"pair": [0, 1], "ends": [0, size - 1], "others": list(range(1, size))}
    found = {}
    for name, members in named.items():
        if len(members) < size and members not in found.values():
            found[name] = members
    return found


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    themes = {name: importlib.import_module(f"themes.{name}") for name in names}
    hvd = themes[names[0]].hvd
    members = overlapping_sets(from_launcher("SIZE"))
    sets = {name: hvd.ProcessSet(ranks) for name, ranks in members.items()}
    hvd.init(process_sets=list(sets.values()))
    sets = {"world": hvd.global_process_set} | sets
    for name, theme in themes.items():
        record = Record()
        theme.run(record, sets)
        hvd.join()
        record.save(folder / f"{name}.{hvd.rank()}.pickle")
    hvd.shutdown()


main()
