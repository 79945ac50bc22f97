"""What is changed in Horovod 0.28.1: the build for today's frameworks, and the backend's hooks.

Everything that can stand in files of our own does (compat/horovod); these edits only call it.
"""

from __future__ import annotations

from .anchored import Edit
from .keras_edits import KERAS_EDITS
from .repairs import REPAIRS
from .timing_edits import TIMING_EDITS
from .type_edits import TYPE_EDITS

# --- Building with today's frameworks -------------------------------------------------------------
# torch 2.13 needs C++17 for the whole tree and for its own library; TensorFlow 2.21 has moved
# headers that only the GPU's XLA operations use; distutils is gone from Python 3.12.
BUILD_EDITS = [
    Edit(
        "CMakeLists.txt", r"^set\(CMAKE_CXX_STANDARD 14\)", "set(CMAKE_CXX_STANDARD 17)", "instead"
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
    # torch is loaded by then: where it was on the machine that built this says nothing elsewhere.
    # MPI's folder is the site's.
    Edit(
        "horovod/torch/CMakeLists.txt",
        r'^set_target_properties\(\$\{PYTORCH_TARGET_LIB\} PROPERTIES OUTPUT_NAME "mpi_lib_v2"\)$',
        "\nset_target_properties(${PYTORCH_TARGET_LIB} PROPERTIES SKIP_BUILD_RPATH ON)\n"
        "foreach(library ${MPI_LIBRARIES})\n"
        "    get_filename_component(folder ${library} DIRECTORY)\n"
        '    target_link_libraries(${PYTORCH_TARGET_LIB} "-Wl,-rpath,${folder}")\n'
        "endforeach()",
    ),
    # A torch with CUDA in it, which is what PyPI has, next to a compiler of CUDA without its
    # libraries: tensors on GPUs are out of reach there, those on CPUs are not.
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
    Edit(_PARSER, r"^#include <stdlib\.h>\n", '\n#define HOROVOD_RINGCOLL "RINGCOLL"\n'),
    Edit(
        _PARSER,
        r"HOROVOD_CCL\) == 0\) \{\n\s*cpu_operation = LibType::CCL;\n",
        "    } else if (strcasecmp(user_cpu_operation, HOROVOD_RINGCOLL) == 0) {\n"
        "      cpu_operation = LibType::RINGCOLL;\n",
    ),
    Edit(_PARSER, r"oneCCL, and Gloo are", "oneCCL, Gloo and RINGCOLL are", "instead"),
    # The operations named RINGCOLL bring their controller with them, unless one is named.
    Edit(
        _PARSER,
        r"// If specified during runtime\n",
        "  const char* operations = std::getenv(HOROVOD_CPU_OPERATIONS);\n"
        "  if (operations != nullptr && strcasecmp(operations, HOROVOD_RINGCOLL) == 0) {\n"
        "    controller = LibType::RINGCOLL;\n"
        "  }\n",
    ),
    Edit(
        _PARSER,
        r"HOROVOD_GLOO\) == 0\) \{\n\s*controller = LibType::GLOO;\n",
        "    } else if (strcasecmp(user_cpu_operation, HOROVOD_RINGCOLL) == 0) {\n"
        "      controller = LibType::RINGCOLL;\n",
    ),
    Edit(_PARSER, r"only MPI and Gloo \"", 'only MPI, Gloo and RINGCOLL "', "instead"),
]

# --- Process sets ---------------------------------------------------------------------------------
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
        "  void Finalize(const RingcollContext& context, const Status& status);\n\n",
        "before",
    ),
    Edit(_SETS_CC, r'^#include "process_set\.h"\n', '#include "ringcoll/ringcoll_context.h"\n'),
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
]

# --- Life of the backend --------------------------------------------------------------------------
_OPERATIONS = "horovod/common/operations.cc"
_LIFE = """
void EnrichProcessSetWithRingcollController(ProcessSet& process_set) {
  process_set.controller.reset(new RingcollController(
      process_set.response_cache, process_set.tensor_queue,
      horovod_global.timeline, horovod_global.parameter_manager,
      process_set.group_table, horovod_global.timeline_controller));
}

// Called in the user's thread, before the background thread is started.
bool EnableRingcoll(HorovodGlobalState& state, const std::vector<int>& ranks,
                    const std::vector<std::vector<int>>& process_set_ranks) {
  if (state.cpu_operation != LibType::RINGCOLL && state.control_operation != LibType::RINGCOLL) {
    RingcollContext::Get().Disable();
    return true;
  }
  state.initialization_failed = false;
  if (!RingcollContext::Get().Enable(state.cpu_operation, state.control_operation)) {
    return false;
  }
  if (state.control_operation == LibType::RINGCOLL) {
#if HAVE_MPI
    if (RingcollContext::StartedByMpi()) {
      global_mpi_context.Enable(ranks);
    }
#endif
    auto& global_process_set = state.process_set_table.Get(0);
    EnrichProcessSetWithRingcollController(global_process_set);
    state.global_controller = global_process_set.controller;
    state.process_set_ranks_to_register = process_set_ranks;
  }
  return true;
}

// Called in the background thread, after the contexts of MPI and Gloo.
bool InitializeRingcoll(HorovodGlobalState& state) {
  RingcollNeighbours neighbours;
#if HAVE_MPI
  if (global_mpi_context.IsEnabled()) {
    neighbours.mpi = &global_mpi_context;
  }
#endif
#if HAVE_GLOO
  if (global_gloo_context.IsEnabled()) {
    neighbours.gloo = &global_gloo_context;
  }
#endif
  state.initialization_failed =
      !RingcollContext::Get().Initialize(neighbours, state.process_set_table);
  return !state.initialization_failed;
}

"""
_ENABLE = """    if (!EnableRingcoll(horovod_global, ranks, process_set_ranks)) {
      horovod_global.initialize_flag.clear();
      return false;
    }
"""
# Python reads an int: of a C++ bool only the lowest byte is defined.
_QUERIES = """int horovod_ringcoll_built() { return 1; }

int horovod_ringcoll_enabled() { return RingcollContext::Get().IsEnabled() ? 1 : 0; }

// Why initialization failed; empty if it did not, or not because of ringcoll.
const char* horovod_ringcoll_error() {
  static thread_local std::string reason;
  reason = RingcollContext::Get().failure();
  return reason.c_str();
}

"""
LIFE_EDITS = [
    Edit(
        _OPERATIONS,
        r'^#include "utils/env_parser\.h"\n',
        '#include "ringcoll/ringcoll_adasum.h"\n'
        '#include "ringcoll/ringcoll_context.h"\n'
        '#include "ringcoll/ringcoll_controller.h"\n'
        '#include "ringcoll/ringcoll_operations.h"\n'
        "\n"
        "// Tensors that come after ringcoll has lost the job learn why.\n"
        "#define SHUT_DOWN_ERROR RingcollContext::Get().ShutDownError()\n",
    ),
    Edit(
        _OPERATIONS,
        r"^#if HAVE_GLOO\n  if \(global_gloo_context\.IsEnabled\(\)\) \{\n    allreduce_ops",
        "  if (state.cpu_operation == LibType::RINGCOLL) {\n"
        "    allreduce_ops.push_back(std::make_shared<RingcollAllreduce>(&state));\n"
        "    allgather_ops.push_back(std::make_shared<RingcollAllgather>(&state));\n"
        "    broadcast_ops.push_back(std::make_shared<RingcollBroadcast>(&state));\n"
        "    alltoall_ops.push_back(std::make_shared<RingcollAlltoall>(&state));\n"
        "    reducescatter_ops.push_back(std::make_shared<RingcollReducescatter>(&state));\n"
        "    adasum_ops.push_back(std::make_shared<RingcollAdasum>(&state));\n"
        "  }\n\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^// If we already have a process set built from the same ranks",
        _LIFE.lstrip("\n"),
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^  assert\(process_set\.controller != nullptr\);\n",
        "  if (horovod_global.control_operation == LibType::RINGCOLL) {\n"
        "    EnrichProcessSetWithRingcollController(process_set);\n"
        "  }\n",
        "before",
    ),
    # Process set 0 has a communicator of MPI from here on, as under the controller MPI.
    Edit(
        _OPERATIONS,
        r"^    global_mpi_context\.Initialize\(mpi_ctx_manager\);\n",
        "    if (state.control_operation == LibType::RINGCOLL) {\n"
        "      state.process_set_table.Get(0).mpi_context.InitializeForProcessSet(\n"
        "          global_mpi_context, {});\n"
        "    }\n",
    ),
    Edit(
        _OPERATIONS,
        r"^  assert\(state\.global_controller->IsInitialized\(\)\);\n",
        "  if (RingcollContext::Get().IsEnabled() && !InitializeRingcoll(state)) {\n"
        "    return;\n"
        "  }\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^    if \(state\.process_set_ranks_to_register\.size\(\) > 0 &&$",
        "    if (state.control_operation == LibType::RINGCOLL) {\n"
        "      initialized_count =\n"
        "          state.process_set_table.InitializeRegisteredAndRemoveMarkedIfReady(\n"
        "              RingcollContext::Get());\n"
        "    }\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^  bool should_shutdown = false;\n",
        "  if (state.dynamic_process_sets && state.control_operation == LibType::RINGCOLL) {\n"
        "    state.process_set_table.InitializeRegisteredAndRemoveMarkedIfReady(\n"
        "        RingcollContext::Get());\n"
        "  }\n\n",
        "before",
    ),
    Edit(
        _OPERATIONS,
        r"^#if HAVE_GPU\n  gpu_context\.Finalize\(\);",
        "  if (state.control_operation == LibType::RINGCOLL) {\n"
        "    horovod_global.process_set_table.Finalize(RingcollContext::Get(), SHUT_DOWN_ERROR);\n"
        "  }\n"
        "  RingcollContext::Get().Finalize();\n\n",
        "before",
    ),
    Edit(_OPERATIONS, r"^    // Reset initialization flag$", _ENABLE, "before"),
    # Its operations take tensors as they lie: a buffer to fuse them in is not allocated.
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
    # MPI can be there without being the controller.
    Edit(
        _OPERATIONS,
        r"std::dynamic_pointer_cast<MPIController>\(\n\s*horovod_global\.global_controller\);\n",
        "  if (mpiController == nullptr) {\n"
        "    return RingcollContext::MpiThreadsSupported() ? 1 : 0;\n"
        "  }\n",
    ),
    Edit(_OPERATIONS, r"^int horovod_nccl_built\(\) \{$", _QUERIES, "before"),
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
    # horovodrun in Gloo mode names both variables for its workers.
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
    # Eager TensorFlow checks after it has reduced.
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
    # It hands everything to the optimizer that it wraps, and so reduces nothing.
    Edit(
        _TENSORFLOW,
        r"^        if op == Adasum:\n(?=            if process_set\.process_set_id)",
        "            raise NotImplementedError(\n"
        "                'Adasum is not supported with optimizers of TensorFlow 1; reduce the '\n"
        "                'gradients: hvd.DistributedGradientTape(tape, op=hvd.Adasum)')\n",
    ),
    # The device that the next lines ask for is that of a name which is not there yet.
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
]
