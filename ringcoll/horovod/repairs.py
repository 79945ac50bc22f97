"""Mistakes of Horovod 0.28.1 that all of its backends have, and that break jobs over ours too."""

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
    # Whoever waits for a tensor when Horovod shuts down is told so by the background thread, which
    # held the locks of the table of process sets and of the queue meanwhile. Freeing a tensor of
    # torch needs Python's lock: a thread that held that, and submitted the next tensor, waited for
    # the first two for ever. And a tensor that came to the queue after its end was never told.
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
    # What the timeline's thread had not written when Horovod was shut down was lost: the last tens
    # of milliseconds, or all of a short job.
    Edit(_TIMELINE + ".h", r"^  void SetTimelineFile\(.*\n", "  void AwaitWriter();\n"),
    Edit(
        _TIMELINE + ".cc",
        r"(?<=void TimelineWriter::Shutdown\(\) \{\n)",
        "  AwaitWriter();\n",
        "before",
    ),
    # The timeline has names as JSON: with quotation marks or control characters in one, the file
    # could not be read.
    Edit(_TIMELINE + ".cc", r'^#include "logging\.h"\n', _REPAIRS),
    *(
        Edit(_TIMELINE + ".cc", rf"(?<=<< )r\.{name}(?= <<)", f"json_text(r.{name})", "instead")
        for name in ("tensor_name", "op_name", "marker_name")
    ),
    # A second init() of Gloo met addresses of the first one. The rendezvous server clears a scope
    # when all of its ranks have finished, but it forgets which have whenever it clears another.
    # Each meeting of ranks has a scope of its own, as has each framework of a process.
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
    # The sparse ones of a group got the shapes of its first tensors, dense ones or not.
    Edit(
        "horovod/tensorflow/__init__.py",
        r"(?<=in zip\(new_values, new_indices, )tensors(?=\)\])",
        "indexed_slices_list",
        "instead",
    ),
    # A broadcast in place refused the second of two variables of one name ("Variable:0", where the
    # user gave none), while the first was under way into memory that nobody kept any more.
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
