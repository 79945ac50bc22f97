"""Edits that add tensor types to Horovod 0.28.1: bfloat16 everywhere, small types in reductions."""

from __future__ import annotations

import re

from .anchored import Edit

# --- The type in messages -------------------------------------------------------------------------
_MESSAGE = "horovod/common/message.cc"
_WIRE = "horovod/common/wire/message_generated.h"
MESSAGE_EDITS = [
    Edit("horovod/common/message.h", r"^  HOROVOD_BOOL = 9,\n", "  HOROVOD_BFLOAT16 = 10,\n"),
    Edit(
        _MESSAGE,
        r"^    case HOROVOD_BOOL:\n      static const",
        "    case HOROVOD_BFLOAT16:\n"
        '      static const std::string bfloat16("bfloat16");\n'
        "      return bfloat16;\n",
        "before",
    ),
    Edit(
        _MESSAGE,
        r"^    case HOROVOD_BOOL:\n      return sizeof",
        "    case HOROVOD_BFLOAT16:\n      return 2;\n",
        "before",
    ),
    Edit(_WIRE, r"^  DataType_HOROVOD_BOOL = 9,\n", "  DataType_HOROVOD_BFLOAT16 = 10,\n"),
    Edit(
        _WIRE,
        r"DataType_MAX = DataType_HOROVOD_BOOL$",
        "DataType_MAX = DataType_HOROVOD_BFLOAT16",
        "instead",
    ),
    Edit(_WIRE, r"EnumValuesDataType\(\)\)\[10\]", "EnumValuesDataType())[11]", "instead"),
    Edit(_WIRE, r"^    DataType_HOROVOD_BOOL$", ",\n    DataType_HOROVOD_BFLOAT16"),
    Edit(
        _WIRE,
        r"(?<=EnumNamesDataType\(\) \{\n  static const char \* const names\[)11",
        "12",
        "instead",
    ),
    Edit(_WIRE, r'^    "HOROVOD_BOOL",\n', '    "HOROVOD_BFLOAT16",\n'),
    Edit(
        _WIRE,
        r"IsOutRange\(e, DataType_HOROVOD_UINT8, DataType_HOROVOD_BOOL\)",
        "IsOutRange(e, DataType_MIN, DataType_MAX)",
        "instead",
    ),
]

# --- Other backends -------------------------------------------------------------------------------
# MPI moves bfloat16 and refuses to reduce it. Its reductions of bool become logical operations.
# GLOO refuses types that it does not know.
_MPI = "horovod/common/mpi/mpi_context.cc"
MPI_EDITS = [
    Edit(
        _MPI,
        r"^  case HOROVOD_FLOAT32:\n",
        "  case HOROVOD_BFLOAT16:\n    return MPI_UINT16_T;\n",
        "before",
    ),
    Edit(_MPI, r'^#include "\.\./logging\.h"\n', '#include "../ringcoll/ringcoll_types.h"\n'),
] + [
    Edit(
        _MPI,
        rf"^  return dtype == HOROVOD_FLOAT16 \? mpi_float16_{name}",
        f"  refuse_bfloat16_by_mpi(dtype);\n  if (dtype == HOROVOD_BOOL) return {of_bool};\n",
        "before",
    )
    for name, of_bool in (
        ("sum", "MPI_LOR"),
        ("min", "MPI_LAND"),
        ("max", "MPI_LOR"),
        ("prod", "MPI_LAND"),
    )
]

# --- torch ----------------------------------------------------------------------------------------
_ADAPTER = "horovod/torch/adapter_v2.cc"
_BINDINGS = (
    ("Allreduce", "Reduced"),
    ("GroupedAllreduce", "Reduced"),
    ("Allgather", "Moved"),
    ("GroupedAllgather", "Moved"),
    ("Broadcast", "Moved"),
    ("Alltoall", "Moved"),
    ("Reducescatter", "Reduced"),
    ("GroupedReducescatter", "Reduced"),
)


def _bind(function: str, types: str) -> str:
    """C++ code that defines the operation `function` for more types in the module of
    horovod.torch."""
    operation = re.sub(r"(?<=.)(?=[A-Z])", "_", function).lower()
    return (
        f'  ringcoll_bind(m, "{operation}", kRingcoll{types}, &Do{function},\n'
        f"                &Do{function}CudaOnCPU);\n"
    )


TORCH_EDITS = [
    Edit(
        _ADAPTER,
        r'^  default:\n    throw std::logic_error\("Invalid data type',
        "  case common::HOROVOD_BFLOAT16:\n    return ::torch::kBFloat16;\n"
        "  case common::HOROVOD_BOOL:\n    return ::torch::kBool;\n"
        "  case common::HOROVOD_UINT16:\n    return ::torch::kUInt16;\n",
        "before",
    ),
    Edit(
        _ADAPTER,
        r'^  default:\n    throw std::logic_error\("Invalid tensor type',
        "  case ::torch::kBFloat16:\n    return common::HOROVOD_BFLOAT16;\n"
        "  case ::torch::kBool:\n    return common::HOROVOD_BOOL;\n"
        "  case ::torch::kUInt16:\n    return common::HOROVOD_UINT16;\n",
        "before",
    ),
    Edit(
        "horovod/torch/mpi_ops_v2.cc",
        r"^  // join\n(?=  m\.def\()",
        "".join(_bind(*binding) for binding in _BINDINGS) + "\n",
        "before",
    ),
]

# --- TensorFlow -----------------------------------------------------------------------------------
_TF = "horovod/tensorflow/mpi_ops.cc"
_REDUCED = "bfloat16, uint16, int16, bool, "
_SCATTERED = "bfloat16, uint8, int8, uint16, int16, bool, "
_MOVED = "bfloat16, "
TENSORFLOW_EDITS = [
    Edit(
        _TF,
        r"^  case common::HOROVOD_BOOL:\n",
        "  case common::HOROVOD_BFLOAT16:\n    return DT_BFLOAT16;\n",
        "before",
    ),
    Edit(
        _TF,
        r"^  case DT_BOOL:\n",
        "  case DT_BFLOAT16:\n    return common::HOROVOD_BFLOAT16;\n",
        "before",
    ),
    Edit(
        _TF,
        r"^        PROCESS_CASE\(DT_FLOAT, float\)\n",
        "        PROCESS_CASE(DT_BFLOAT16, ::tensorflow::bfloat16)\n",
        "before",
    ),
] + [
    Edit(_TF, rf'^REGISTER_OP\("Horovod{operation}"\)\n    \.Attr\(\s*"T: \{{', types)
    for operation, types in (
        ("Allreduce", _REDUCED),
        ("GroupedAllreduce", _REDUCED),
        ("Allgather", _MOVED),
        ("GroupedAllgather", _MOVED),
        ("Broadcast", _MOVED),
        ("BroadcastInplace", _MOVED),
        ("Alltoall", _MOVED),
        ("Reducescatter", _SCATTERED),
        ("GroupedReducescatter", _SCATTERED),
    )
]

# --- Compression ----------------------------------------------------------------------------------
_COMPRESSOR = '''class BF16Compressor(FP16Compressor):
    """Compresses floating point gradients to bfloat16, which has the range of float32."""
    @staticmethod
    def compress(tensor):
        """Downcasts the tensor to bfloat16."""
        if not {is_floating}:
            return tensor, tensor.dtype
        return {cast}, tensor.dtype


'''
COMPRESSION_EDITS = [
    edit
    for package, is_floating, cast in (
        ("torch", "tensor.dtype.is_floating_point", "tensor.type(torch.bfloat16)"),
        ("tensorflow", "tensor.dtype.is_floating", "tf.cast(tensor, dtype=tf.bfloat16)"),
    )
    for edit in (
        Edit(
            f"horovod/{package}/compression.py",
            r"^class Compression\(object\):",
            _COMPRESSOR.format(is_floating=is_floating, cast=cast),
            "before",
        ),
        Edit(
            f"horovod/{package}/compression.py",
            r"^    fp16 = FP16Compressor",
            '\n\n    """Compress all floating point gradients to bfloat16."""\n'
            "    bf16 = BF16Compressor",
        ),
    )
]

TYPE_EDITS = [
    *MESSAGE_EDITS,
    *MPI_EDITS,
    *TORCH_EDITS,
    *TENSORFLOW_EDITS,
    *COMPRESSION_EDITS,
]
