"""The edits of Horovod 0.28.1: its build with current frameworks, and the hooks of the backend.

Code goes into ringcoll's own files (compat/horovod) wherever possible. There it is formatted, and
compiler errors have useful lines. An edit adds to C++ only an include, a call, a declaration, or a
branch of one of Horovod's conditions or switches.
"""

from __future__ import annotations

from .anchored import Edit
from .keras_edits import KERAS_EDITS
from .repairs import REPAIRS
from .timing_edits import TIMING_EDITS
from .torch_edits import TORCH_PYTHON_EDITS
from .type_edits import TYPE_EDITS

# --- Building with today's frameworks -------------------------------------------------------------
# torch 2.13 needs C++17 for the whole tree and for its own library. TensorFlow 2.21 has moved
# headers that only XLA operations for GPUs use. Python 3.12 has no distutils.
BUILD_EDITS = [
    Edit(
        "CMakeLists.txt", r"^set\(CMAKE_CXX_STANDARD 14\)", "set(CMAKE_CXX_STANDARD 17)", "instead"
    ),
    # So TensorFlow needs no second build of Gloo as C++17.
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        r"^    set\(Tensorflow_CXX17 TRUE\)$",
        "    set(Tensorflow_CXX17 FALSE)",
        "instead",
    ),
    # -g1 has names and lines, which backtraces need. -g makes the wheel five times as large.
    Edit(
        "CMakeLists.txt",
        r'^string\(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO .*\)$',
        '\nstring(REPLACE "-g" "-g1" CMAKE_CXX_FLAGS_RELWITHDEBINFO'
        ' "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")',
    ),
    Edit(
        "horovod/torch/CMakeLists.txt",
        r"set\(CMAKE_CXX_STANDARD 14\)",
        "set(CMAKE_CXX_STANDARD 17)",
        "instead",
    ),
    Edit(
        "horovod/torch/CMakeLists.txt",
        r"from distutils\.sysconfig import get_python_inc; print\(get_python_inc\(\)\)",
        "import sysconfig; print(sysconfig.get_path('include'))",
        "instead",
    ),
    # No run path to torch: torch is loaded before this library, and its folder on the building
    # machine means nothing elsewhere. The folder of MPI is the same on all machines of a site.
    Edit(
        "horovod/torch/CMakeLists.txt",
        r'^set_target_properties\(\$\{PYTORCH_TARGET_LIB\} PROPERTIES OUTPUT_NAME "mpi_lib_v2"\)$',
        "\nset_target_properties(${PYTORCH_TARGET_LIB} PROPERTIES SKIP_BUILD_RPATH ON)\n"
        "foreach(library ${MPI_LIBRARIES})\n"
        "    get_filename_component(folder ${library} DIRECTORY)\n"
        '    target_link_libraries(${PYTORCH_TARGET_LIB} "-Wl,-rpath,${folder}")\n'
        "endforeach()",
    ),
    # torch from PyPI has CUDA. Without the CUDA toolkit on this machine, tensors on GPUs are left
    # out, and those on CPUs work.
    Edit(
        "cmake/Modules/FindPytorch.cmake",
        r'^string\(TOUPPER "\$\{Pytorch_CUDA\}" Pytorch_CUDA\)\n',
        "find_package(CUDAToolkit QUIET)\n"
        "if(NOT CUDAToolkit_FOUND)\n    set(Pytorch_CUDA FALSE)\nendif()\n",
    ),
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        r"^list\(APPEND TF_SOURCES .*/xla_mpi_ops\.cc\"\)$",
        "if(HAVE_CUDA OR HAVE_ROCM)\n",
        "before",
    ),
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        r"^list\(APPEND TF_SOURCES .*/xla_mpi_ops\.cc\"\)$",
        "\nendif()",
    ),
    Edit(
        "horovod/runner/js_run.py",
        r"^from distutils\.spawn import find_executable$",
        "from shutil import which as find_executable",
        "instead",
    ),
]

# --- Our sources ----------------------------------------------------------------------------------
_SOURCES = """
file(GLOB RINGCOLL_SOURCES "${PROJECT_SOURCE_DIR}/horovod/common/ringcoll/*.cc")
list(APPEND SOURCES ${RINGCOLL_SOURCES})
list(APPEND LINKER_LIBS ${CMAKE_DL_LIBS})
"""
SOURCE_EDITS = [
    Edit("CMakeLists.txt", r"^# Default Macro$", _SOURCES.lstrip("\n") + "\n", "before"),
]

# --- The name of the backend in the environment ---------------------------------------------------
_PARSER = "horovod/common/utils/env_parser.cc"
NAME_EDITS = [
    Edit(
        "horovod/common/utils/env_parser.h", r"enum class LibType \{[^}]*GLOO = 2", ", RINGCOLL = 3"
    ),
    Edit(
        _PARSER,
        r"case LibType::GLOO:\n\s*return std::string\(HOROVOD_GLOO\);\n",
        "  case LibType::RINGCOLL:\n    return std::string(HOROVOD_RINGCOLL);\n",
    ),
    Edit(
        _PARSER,
        r'^#include "\.\./stall_inspector\.h"\n',
        '#include "../ringcoll/ringcoll_names.h"\n',
        "before",
    ),
    Edit(
        _PARSER,
        r"HOROVOD_CCL\) == 0\) \{\n\s*cpu_operation = LibType::CCL;\n",
        "    } else if (is_ringcoll(user_cpu_operation)) {\n"
        "      cpu_operation = LibType::RINGCOLL;\n",
    ),
    Edit(_PARSER, r"oneCCL, and Gloo are", "oneCCL, Gloo and RINGCOLL are", "instead"),
    # If the operations are RINGCOLL, so is the controller, unless another one is named.
    Edit(
        _PARSER,
        r"// If specified during runtime\n",
        "  if (is_ringcoll(std::getenv(HOROVOD_CPU_OPERATIONS))) {\n"
        "    controller = LibType::RINGCOLL;\n"
        "  }\n",
    ),
    Edit(
        _PARSER,
        r"HOROVOD_GLOO\) == 0\) \{\n\s*controller = LibType::GLOO;\n",
        "    } else if (is_ringcoll(user_cpu_operation)) {\n"
        "      controller = LibType::RINGCOLL;\n",
    ),
    Edit(_PARSER, r"only MPI and Gloo \"", 'only MPI, Gloo and RINGCOLL "', "instead"),
]

# --- Process sets ---------------------------------------------------------------------------------
_OPERATIONS = "horovod/common/operations.cc"
_SETS_H = "horovod/common/process_set.h"
_SETS_CC = "horovod/common/process_set.cc"
PROCESS_SET_EDITS = [
    Edit(
        _SETS_H,
        r"^struct ProcessSet \{",
        'class __attribute__((visibility("hidden"))) RingcollContext;\n\n',
        "before",
    ),
    Edit(
        _SETS_H,
        r"^  // Finalize tensor queue and communicators\.$",
        "  bool Initialize(const RingcollContext& context);\n\n",
        "before",
    ),
    Edit(
        _SETS_H,
        r"^  int32_t RegisterProcessSet\(",
        "  void Initialize(const RingcollContext& context);\n"
        "  int32_t InitializeRegisteredAndRemoveMarkedIfReady(\n"
        "      const RingcollContext& context,\n"
        "      const Status& removal_status = PROCESS_SET_HAS_BEEN_REMOVED);\n"
        "  void Finalize(const RingcollContext& context, const Status& status);\n"
        "  void RefuseProcessSet(int32_t id, const std::string& reason);\n\n",
        "before",
    ),
    Edit(_SETS_CC, r'^#include "process_set\.h"\n', '#include "ringcoll/ringcoll_context.h"\n'),
    # The other controllers also initialize process sets in the same order on all ranks.
    *(
        Edit(_SETS_CC, before, "  RingcollContext::Get().CreateBeside(*this);\n", "before")
        for before in (
            r"^  if \(mpi_context\.GetMPICommunicator\(",
            r"^  if \(gloo_context\.ctx != nullptr\) \{",
        )
    ),
    Edit(
        _SETS_CC,
        r"^  tensor_queue\.FinalizeTensorQueue\(status\);\n",
        "  RingcollContext::Get().Release(controller.get());\n",
    ),
    Edit(
        _SETS_CC,
        r"^int32_t ProcessSetTable::RegisterProcessSet\(",
        "template void ProcessSetTable::Initialize_(const RingcollContext&);\n"
        "template int32_t\n"
        "ProcessSetTable::InitializeRegisteredAndRemoveMarkedIfReady_(const RingcollContext&,\n"
        "                                                             const Status&);\n"
        "template void ProcessSetTable::Finalize_(const RingcollContext&, const Status&);\n\n",
        "before",
    ),
    # If one rank cannot make a process set, all ranks refuse it, with every controller. The job
    # goes on.
    Edit(_SETS_CC, r'^#include "process_set\.h"\n', '#include "ringcoll/ringcoll_process_set.h"\n'),
    Edit(
        _SETS_CC,
        r"Get\(id\)\.Initialize\(global_context\)",
        "initialize_or_refuse(*this, id, global_context)",
        "instead",
    ),
    Edit(
        _OPERATIONS,
        r"^  // Block until the background thread has initialized the process set\.\n"
        r"(?:  .*\n)+?  \}\n",
        "  return await_process_set(horovod_global, id);\n",
        "instead",
    ),
]

# --- Life of the backend --------------------------------------------------------------------------
_FAILED = "    ringcoll_failed(ex);\n"
LIFE_EDITS = [
    Edit(
        _OPERATIONS,
        r'^#include "utils/env_parser\.h"\n',
        '#include "ringcoll/ringcoll_life.h"\n',
    ),
    Edit(
        _OPERATIONS,
        r"^#if HAVE_GLOO\n  if \(global_gloo_context\.IsEnabled\(\)\) \{\n    allreduce_ops",
        "  ringcoll_add_operations(state, allreduce_ops, allgather_ops, broadcast_ops,\n"
        "                          alltoall_ops, reducescatter_ops, adasum_ops);\n\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^  assert\(process_set\.controller != nullptr\);\n",
        "  ringcoll_control(horovod_global, process_set);\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^    global_mpi_context\.Initialize\(mpi_ctx_manager\);\n",
        "    ringcoll_prepare_mpi(state);\n",
    ),
    Edit(
        _OPERATIONS,
        r"^  assert\(state\.global_controller->IsInitialized\(\)\);\n",
        "  if (!ringcoll_initialize(state)) {\n    return;\n  }\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^    if \(state\.process_set_ranks_to_register\.size\(\) > 0 &&$",
        "    initialized_count += ringcoll_update_process_sets(state);\n"
        "    throw_refusal(state.process_set_table);\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^  bool should_shutdown = false;\n",
        "  if (state.dynamic_process_sets) {\n    ringcoll_update_process_sets(state);\n  }\n\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^#if HAVE_GPU\n  gpu_context\.Finalize\(\);",
        "  ringcoll_finalize(state);\n\n",
        "before",
    ),
    # Keeps the reason why Horovod stops, for tensors that are submitted later and for hvd.init().
    *(
        Edit(_OPERATIONS, rf'^        << "Horovod {what}: " << ex\.what\(\);\n', _FAILED)
        for what in ("could not be initialized", "background loop uncaught exception")
    ),
    *(
        Edit(
            _OPERATIONS,
            rf"^    // Enable {name} if it's used",
            f"    ringcoll_note(global_{name}_context);\n",
            "before",
        )
        for name in ("mpi", "gloo")
    ),
    Edit(
        _OPERATIONS,
        r"^    // Reset initialization flag$",
        "    if (!ringcoll_enable(horovod_global, ranks, process_set_ranks)) {\n"
        "      return false;\n"
        "    }\n",
        "before",
    ),
    # The operations of RINGCOLL take a list of tensors, so Horovod allocates no fusion buffer.
    Edit(
        _OPERATIONS,
        r"^    if \((?=entries\.size\(\) > 1 \|\|$)",
        "!ringcoll_takes_as_they_lie(horovod_global, entries, response) &&\n        (",
    ),
    Edit(
        _OPERATIONS,
        r"(?<=REDUCESCATTER &&\n         response\.prescale_factor\(\) != 1\.0\))(?=\) \{)",
        ")",
    ),
    # MPI may be in use without being the controller.
    Edit(
        _OPERATIONS,
        r"std::dynamic_pointer_cast<MPIController>\(\n\s*horovod_global\.global_controller\);\n",
        "  if (mpiController == nullptr) {\n"
        "    return RingcollContext::MpiThreadsSupported() ? 1 : 0;\n"
        "  }\n",
    ),
]

# --- Python ---------------------------------------------------------------------------------------
_BASICS = "horovod/common/basics.py"
_METHODS = '''    def ringcoll_enabled(self):
        """Returns True if ringcoll is the backend of this job (operations or controller)."""
        return bool(self.MPI_LIB_CTYPES.horovod_ringcoll_enabled())

    def ringcoll_built(self):
        """Returns True if this build of Horovod has the backend RINGCOLL."""
        return bool(self.MPI_LIB_CTYPES.horovod_ringcoll_built())

'''
_BUILT = """@_cache
def ringcoll_built(verbose=False):
    for ext_base_name in EXTENSIONS:
        result = _check_extension_lambda(
            ext_base_name, lambda ext: ext.ringcoll_built(), 'built with ringcoll', verbose)
        if result is not None:
            return result
    return None


"""
_LAUNCH = "horovod/runner/launch.py"
PYTHON_EDITS = [
    Edit(
        _BASICS,
        r"^from horovod\.common import util as util\n",
        "from horovod.common import ringcoll_backend\n",
    ),
    Edit(
        _BASICS,
        r"^        atexit\.register\(self\.shutdown\)\n",
        "        ringcoll_backend.prepare()\n",
        "before",
    ),
    Edit(
        _BASICS,
        r"^        if not initialization_ok:\n",
        "            ringcoll_backend.raise_failure(self.MPI_LIB_CTYPES)\n",
    ),
    Edit(
        _BASICS,
        r"^            \(ctypes\.c_int \* nrank\)\(\*ranks\), ctypes\.c_int\(nrank\)\)\)\n",
        "        ringcoll_backend.raise_refusal(self.MPI_LIB_CTYPES, result, ranks)\n",
    ),
    Edit(_BASICS, r"^    def nccl_built\(self\):$", _METHODS, "before"),
    Edit("horovod/common/util.py", r"^@_cache\ndef nccl_built", _BUILT, "before"),
    Edit(_LAUNCH, r"gloo_built, mpi_built,", " ringcoll_built,"),
    Edit(_LAUNCH, r"^        \[\{gloo\}\] Gloo\n", "        [{ringcoll}] Ringcoll\n"),
    Edit(_LAUNCH, r"^        \[\{gloo_ops\}\] Gloo", "\n        [{ringcoll_ops}] Ringcoll"),
    Edit(
        _LAUNCH,
        r"^ +gloo=get_check\(gloo_built\(verbose=verbose\)\),\n",
        "               ringcoll=get_check(ringcoll_built(verbose=verbose)),\n"
        "               ringcoll_ops=get_check(ringcoll_built(verbose=verbose)),\n",
    ),
    # horovodrun in Gloo mode sets both variables of its workers, so the user's choice is restored.
    Edit(
        "horovod/runner/gloo_run.py",
        r"^    if elastic:\n        run_envs\[",
        "    ringcoll_backend.keep_choice(run_envs)\n",
        "before",
    ),
    Edit(
        "horovod/runner/gloo_run.py",
        r"^from horovod\.runner\.common\.util import env as env_util, safe_shell_exec\n",
        "from horovod.common import ringcoll_backend\n",
        "before",
    ),
] + [
    edit
    for package in ("torch", "tensorflow")
    for edit in (
        Edit(
            f"horovod/{package}/mpi_ops.py",
            r"^gloo_built = _basics\.gloo_built\n",
            "ringcoll_enabled = _basics.ringcoll_enabled\n"
            "ringcoll_built = _basics.ringcoll_built\n",
        ),
        Edit(
            f"horovod/{package}/__init__.py",
            rf"from horovod\.{package}\.mpi_ops import gloo_enabled, gloo_built",
            ", ringcoll_enabled, ringcoll_built",
        ),
    )
]

# --- Adasum ---------------------------------------------------------------------------------------
_TENSORFLOW = "horovod/tensorflow/__init__.py"
_CHECK_ADASUM = """def _check_adasum(op, process_set):
    if op != Adasum or nccl_built():
        return
    if process_set != global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if not check_num_rank_power_of_2(size()):
        raise NotImplementedError('Running Adasum with non-power of 2 ranks is not supported yet.')


"""
ADASUM_EDITS = [
    Edit(
        "horovod/common/ops/adasum/adasum.h",
        r"^    case DataType::HOROVOD_FLOAT16:\n",
        "    case DataType::HOROVOD_BFLOAT16:\n",
        "before",
    ),
    # Eager TensorFlow checks these conditions only after it has reduced.
    Edit(_TENSORFLOW, r"^def allreduce\(", _CHECK_ADASUM, "before"),
    Edit(
        _TENSORFLOW,
        r"^    if isinstance\(tensor, tf\.IndexedSlices\):\n(?=        # TODO)",
        "    _check_adasum(op, process_set)\n",
        "before",
    ),
    Edit(
        _TENSORFLOW,
        r"^    # Split list of tensors into indexed slices and normal tensors",
        "    _check_adasum(op, process_set)\n",
        "before",
    ),
    # This optimizer passes all calls to the optimizer that it wraps, so it would reduce nothing.
    Edit(
        _TENSORFLOW,
        r"^        if op == Adasum:\n(?=            if process_set\.process_set_id)",
        "            raise NotImplementedError(\n"
        "                'Adasum is not supported with optimizers of TensorFlow 1; reduce the '\n"
        "                'gradients: hvd.DistributedGradientTape(tape, op=hvd.Adasum)')\n",
    ),
    # The next lines use the device of `tensor`, which is not defined there.
    Edit(
        _TENSORFLOW,
        r"for t, ctx in zip\(summed_tensors_compressed, ctxs\)\]\n",
        "            tensor = tensor_list[0]\n",
    ),
]

EDITS = [
    *BUILD_EDITS,
    *SOURCE_EDITS,
    *NAME_EDITS,
    *PROCESS_SET_EDITS,
    *LIFE_EDITS,
    *PYTHON_EDITS,
    *REPAIRS,
    *TIMING_EDITS,
    *TYPE_EDITS,
    *ADASUM_EDITS,
    *KERAS_EDITS,
    *TORCH_PYTHON_EDITS,
]
