"""Mistakes of Horovod 0.28.1 that all of its backends have, and that break jobs over ours too."""

from __future__ import annotations

from .anchored import Edit

_CONTROLLER = "horovod/common/controller.cc"
_OPERATIONS = "horovod/common/operations.cc"
REPAIRS = [
    # A second init() sets each tunable parameter to its default first. For one that the environment
    # has fixed in the first life there is no place any more, and another one's value was
    # overwritten: with HOROVOD_CYCLE_TIME alone the fusion threshold, and with
    # HOROVOD_FUSION_THRESHOLD too, memory that is not there.
    Edit(
        "horovod/common/parameter_manager.cc",
        r"^    fixed_values_\[variable\] = value;\n    ResetBayes\(\);\n",
        "  } else if (fixed_values_.find(variable) != fixed_values_.end()) {\n"
        "    fixed_values_[variable] = value;\n",
    ),
    # The tables are as long as there are requests, but are written at the ranks of the requests:
    # beyond their end while a rank has joined.
    Edit(
        _CONTROLLER,
        r"tensor_sizes\.resize\(requests\.size\(\)\);",
        "tensor_sizes.resize(size_);",
        "instead",
    ),
    Edit(
        _CONTROLLER,
        r"std::vector<int32_t> devices\(requests\.size\(\)\);",
        "std::vector<int32_t> devices(size_);",
        "instead",
    ),
    Edit(
        _CONTROLLER,
        r"^  Response response;\n  response\.add_tensor_name\(name\);\n",
        "  devices.resize(requests.size());\n",
        "before",
    ),
    # An operation without inputs and without state is done once: TensorFlow keeps the result of the
    # first join() for all that follow.
    Edit(
        "horovod/tensorflow/mpi_ops.cc",
        r'^REGISTER_OP\("HorovodJoin"\)\n',
        "    .SetIsStateful()\n",
    ),
    # Ranks that do not exist ended the process by an exception of C++.
    Edit(
        "horovod/common/process_sets.py",
        r"^    assert process_set\.ranks is not None\n",
        "    if len(set(process_set.ranks)) < len(process_set.ranks) or any(\n"
        "            not 0 <= rank < _basics.size() for rank in process_set.ranks):\n"
        '        raise ValueError(f"Not a set of ranks of this job: {process_set.ranks}")\n',
    ),
    # The length of a scalar was read.
    Edit(
        _OPERATIONS,
        r"^  if \(splits->shape\(\)\.dims\(\) > 1\) \{",
        "  if (tensor->shape().dims() == 0) {\n"
        '    return Status::InvalidArgument("alltoall expects a tensor with a first dimension");\n'
        "  }\n"
        "  if (splits->shape().dims() != 1) {",
        "instead",
    ),
]
