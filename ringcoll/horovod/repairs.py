"""Repairs of defects in Horovod 0.28.1 that affect all its backends, and so jobs over ringcoll too.

The comments describe Horovod without the repair.
"""

from __future__ import annotations

from .anchored import Edit

_CONTROLLER = "horovod/common/controller.cc"
_OPERATIONS = "horovod/common/operations.cc"
_QUEUE = "horovod/common/tensor_queue"
_TIMELINE = "horovod/common/timeline"
_GLOO = "horovod/common/gloo/"
_REPAIRS = '#include "ringcoll/ringcoll_repairs.h"\n'
_REFUSE = "  if (closed_) {\n    return SHUT_DOWN_ERROR;\n  }\n"
_MPI_OPS = "horovod/tensorflow/mpi_ops.py"
_DISTINCT_NAMES = '''def _distinct_names(variables):
    """The names of the variables, with a number from the second of one name on."""
    names, seen = [], {}
    for variable in variables:
        count = seen[variable.name] = seen.get(variable.name, 0) + 1
        names.append(variable.name if count == 1 else f"{variable.name}.{count}")
    return names


'''
REPAIRS = [
    # A second init() first sets each tunable parameter to its default. A parameter that the
    # environment fixed in the first init() has no entry any more, so this overwrites another
    # parameter. With HOROVOD_CYCLE_TIME alone that is the fusion threshold. With
    # HOROVOD_FUSION_THRESHOLD too, the write is out of bounds.
    Edit(
        "horovod/common/parameter_manager.cc",
        r"^    fixed_values_\[variable\] = value;\n    ResetBayes\(\);\n",
        "  } else if (fixed_values_.find(variable) != fixed_values_.end()) {\n"
        "    fixed_values_[variable] = value;\n",
    ),
    # The tables have one entry for each request, but are indexed by rank. While a rank has joined,
    # the writes are out of bounds.
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
    # TensorFlow executes an operation without inputs and state only once. So it returns the result
    # of the first join() for all later ones.
    Edit(
        "horovod/tensorflow/mpi_ops.cc",
        r'^REGISTER_OP\("HorovodJoin"\)\n',
        "    .SetIsStateful()\n",
    ),
    # A process set with a rank that does not exist ends the process by a C++ exception.
    Edit(
        "horovod/common/process_sets.py",
        r"^    assert process_set\.ranks is not None\n",
        "    if len(set(process_set.ranks)) < len(process_set.ranks) or any(\n"
        "            not 0 <= rank < _basics.size() for rank in process_set.ranks):\n"
        '        raise ValueError(f"Not a set of ranks of this job: {process_set.ranks}")\n',
    ),
    # An alltoall of a scalar reads the length of its first axis, which it does not have.
    Edit(
        _OPERATIONS,
        r"^  if \(splits->shape\(\)\.dims\(\) > 1\) \{",
        "  if (tensor->shape().dims() == 0) {\n"
        '    return Status::InvalidArgument("alltoall expects a tensor with a first dimension");\n'
        "  }\n"
        "  if (splits->shape().dims() != 1) {",
        "instead",
    ),
    # When Horovod shuts down, the background thread notifies the waiters of tensors. It holds the
    # locks of the process set table and of the queue meanwhile. Freeing a torch tensor needs the
    # GIL, so this deadlocks with a thread that holds the GIL and submits the next tensor. Also, a
    # tensor that is submitted after the queue has ended is never completed.
    Edit(_OPERATIONS, r'^#include "utils/env_parser\.h"\n', _REPAIRS),
    Edit(
        _OPERATIONS,
        r"^  state\.shut_down = true;\n",
        "  end_tensor_queues(state.process_set_table, SHUT_DOWN_ERROR);\n",
    ),
    Edit(
        _OPERATIONS,
        r"^    // Reset initialization flag$",
        "    horovod_global.process_set_table.Get(0).tensor_queue.Open();\n",
        "before",
    ),
    Edit(
        _QUEUE + ".h",
        r"^  void FinalizeTensorQueue\(const Status& status\);\n",
        "  void Open();\n",
    ),
    Edit(
        _QUEUE + ".h",
        r"^  mutable std::mutex mutex_;\n",
        "  bool closed_ = false;\n  std::unordered_map<std::string, TensorTableEntry> Close();\n",
    ),
    Edit(
        _QUEUE + ".cc",
        r"(?<=FinalizeTensorQueue\(const Status& status\) \{\n)"
        r"  std::lock_guard<std::mutex> guard\(mutex_\);\n",
        "  auto unfinished = Close();\n",
        "instead",
    ),
    Edit(_QUEUE + ".cc", r"(?<=^  for \(auto& e : )tensor_table_", "unfinished", "instead"),
    Edit(_QUEUE + ".cc", r"^  if \(tensor_table_\.find\(e\.tensor_name\)", _REFUSE, "before"),
    Edit(
        _QUEUE + ".cc",
        r"(?<=std::vector<Request>& messages\) \{\n)"
        r"  std::lock_guard<std::mutex> guard\(mutex_\);\n",
        _REFUSE,
    ),
    # At shutdown, events that the timeline's thread has not yet written are lost: the last tens of
    # milliseconds, or all events of a short job.
    Edit(_TIMELINE + ".h", r"^  void SetTimelineFile\(.*\n", "  void AwaitWriter();\n"),
    Edit(
        _TIMELINE + ".cc",
        r"(?<=void TimelineWriter::Shutdown\(\) \{\n)",
        "  AwaitWriter();\n",
        "before",
    ),
    # The timeline does not escape names. With quotation marks or control characters in a name, the
    # file is no valid JSON.
    Edit(_TIMELINE + ".cc", r'^#include "logging\.h"\n', _REPAIRS),
    *(
        Edit(_TIMELINE + ".cc", rf"(?<=<< )r\.{name}(?= <<)", f"json_text(r.{name})", "instead")
        for name in ("tensor_name", "op_name", "marker_name")
    ),
    # A second init() of Gloo finds addresses of the first one. The rendezvous server clears a scope
    # when all of its ranks have finished. But it forgets which ranks have finished whenever it
    # clears another scope. With the repair, each init() and each framework of a process has its own
    # scope.
    Edit(
        _GLOO + "gloo_context.cc",
        r'^#include "memory_store\.h"\n',
        '#include "../ringcoll/ringcoll_scopes.h"\n',
    ),
    Edit(
        _GLOO + "gloo_context.cc",
        r"(?<=new HTTPStore\(server_addr, server_port, )prefix",
        "RingcollScopes::Get().Next(prefix)",
        "instead",
    ),
    Edit(
        _GLOO + "gloo_context.cc",
        r"^  bool elastic = GetBoolEnvOrDefault\(HOROVOD_ELASTIC, false\);\n",
        "  RingcollScopes::Get().BeginLife(elastic);\n",
    ),
    Edit(
        _GLOO + "http_store.cc",
        r"(?<=^void HTTPStore::Finalize\(\) \{ )",
        'HTTP_DELETE("rank_" + std::to_string(rank_)); ',
    ),
    # The sparse tensors of a group get the shapes of the group's first tensors, even of dense ones.
    Edit(
        "horovod/tensorflow/__init__.py",
        r"(?<=in zip\(new_values, new_indices, )tensors(?=\)\])",
        "indexed_slices_list",
        "instead",
    ),
    # A broadcast in place refuses the second of two variables with the same name, such as the
    # default "Variable:0". The first one is still in flight, into memory that is then freed.
    Edit(_MPI_OPS, r"^def broadcast_\(variables, ", _DISTINCT_NAMES, "before"),
    *(
        Edit(
            _MPI_OPS,
            rf"(?<={before}variable_names=)\[var\.name for var in variables\]",
            "_distinct_names(variables)",
            "instead",
        )
        for before in (r"horovod_broadcast_inplace\(variables, ", " " * 56)
    ),
]
