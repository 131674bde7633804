#include <algorithm>

#include "io/pth_pickle.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Kind = PickleValue::Kind;

constexpr StorageType kStorageTypes[] = {
    {"torch.FloatStorage", "F32", 4}, {"torch.DoubleStorage", "F64", 8},
    {"torch.HalfStorage", "F16", 2},  {"torch.BFloat16Storage", "BF16", 2},
    {"torch.LongStorage", "I64", 8},  {"torch.IntStorage", "I32", 4},
    {"torch.ShortStorage", "I16", 2}, {"torch.CharStorage", "I8", 1},
    {"torch.ByteStorage", "U8", 1},   {"torch.BoolStorage", "BOOL", 1},
};

// Arguments, scores, devices.
constexpr std::string_view kBeside[] = {
    "__builtin__.dict",
    "__builtin__.float",
    "__builtin__.frozenset",
    "__builtin__.int",
    "__builtin__.list",
    "__builtin__.set",
    "argparse.Namespace",
    "collections.defaultdict",
    "collections.Counter",
    "_codecs.encode",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.dtype",
    "numpy.ndarray",
    "pathlib.Path",
    "pathlib.PosixPath",
    "torch.Size",
    "torch.device",
    "types.SimpleNamespace",
};

}  // namespace

std::string PickleValue::describe() const {
  switch (kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInteger:
    case Kind::kLargeInteger:
      return "an int";
    case Kind::kFloat:
      return "a float";
    case Kind::kText:
      return "a str";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kDict:
      return "a dict";
    case Kind::kGlobal:
      return concat("the name ", text);
    case Kind::kStorage:
      return "a storage";
    case Kind::kTensor:
      return "a tensor";
    case Kind::kOpaque:
      return concat("an object of ", text);
  }
  return "?";
}

const StorageType* storage_type(std::string_view global) {
  const auto* found = std::find_if(std::begin(kStorageTypes), std::end(kStorageTypes),
                                   [&](const StorageType& type) { return type.name == global; });
  return found == std::end(kStorageTypes) ? nullptr : found;
}

PickleName pickle_name(std::string_view global) {
  if (global == "collections.OrderedDict") return PickleName::kOrderedDict;
  if (global == "torch._utils._rebuild_tensor_v2") return PickleName::kRebuildTensor;
  if (global == "torch._utils._rebuild_parameter") return PickleName::kRebuildParameter;
  if (storage_type(global) != nullptr) return PickleName::kStorageType;
  const bool beside =
      std::find(std::begin(kBeside), std::end(kBeside), global) != std::end(kBeside);
  return beside ? PickleName::kBeside : PickleName::kUnknown;
}

}  // namespace lockstep
