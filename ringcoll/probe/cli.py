"""The command ``ringcoll probe``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ringcoll.cluster import Leader, take_part
from ringcoll.cluster.options import add_options, is_another_rank
from ringcoll.environment import find_job
from ringcoll.errors import Error, InvalidArgument
from ringcoll.findings import can_run
from ringcoll.info import wide_console
from ringcoll.outputs import check_file, check_picture, write_file, write_picture
from ringcoll.probe import Survey, survey
from ringcoll.probe.picture import draw
from ringcoll.probe.show import print_survey


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "probe",
        help="find out, under a launcher, which hosts are near one another",
        description="Measures between the hosts of a job, finds groups of hosts that are near one "
        "another, and can write them to a file for RINGCOLL_TOPOLOGY. A launcher starts it with "
        "at least one rank on each host.",
    )
    add_options(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the groups of hosts to this file, for RINGCOLL_TOPOLOGY",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw all pairs of hosts into this file (.svg, .png and others)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        job = find_job()
    except Error:
        if is_another_rank():
            return 1
        raise
    if job.size == 1:
        raise InvalidArgument(
            "the command measures between the hosts of a job, and this job has only one rank. "
            "Start it by a launcher with a rank on each host: "
            "horovodrun -np 4 -H node1,node2,node3,node4 ringcoll probe"
        )

    def lead(leader: Leader) -> Survey:
        if arguments.output is not None:
            check_file("--output", arguments.output)
        if arguments.plot is not None:
            check_picture("--plot", arguments.plot)
        return survey(leader)

    found = take_part(job, lead, arguments.wait, arguments.limit)
    return 0 if found is None else _tell(found, arguments)


def _tell(found: Survey, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print_survey(wide_console(), found)
    if arguments.plot is not None:
        write_picture("--plot", arguments.plot, draw(found))
    if arguments.output is not None:
        if found.gaps:
            raise Error(f"--output {arguments.output} is not written: {found.gaps[0].detail}")
        write_file("--output", arguments.output, found.topology_file())
        if not arguments.json:
            print(f"Written: RINGCOLL_TOPOLOGY={arguments.output.absolute()}")
    return 0 if can_run(found.findings) else 1
