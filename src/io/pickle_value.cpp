#include <algorithm>
#include <array>
#include <cctype>
#include <span>

#include "io/pth_pickle.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Kind = PickleValue::Kind;

constexpr StorageType kStorageTypes[] = {
    {"torch.FloatStorage", "F32", 4},        {"torch.DoubleStorage", "F64", 8},
    {"torch.HalfStorage", "F16", 2},         {"torch.BFloat16Storage", "BF16", 2},
    {"torch.LongStorage", "I64", 8},         {"torch.IntStorage", "I32", 4},
    {"torch.ShortStorage", "I16", 2},        {"torch.CharStorage", "I8", 1},
    {"torch.ByteStorage", "U8", 1},          {"torch.BoolStorage", "BOOL", 1},
    {"torch.UntypedStorage", "U8", 1},       {"torch.storage.UntypedStorage", "U8", 1},
    {"torch.ComplexFloatStorage", "C64", 8}, {"torch.ComplexDoubleStorage", "C128", 16},
};

// What a tensor says of itself where its storage is of bytes alone, which PyTorch 2.3 and later
// write for types that are younger than storages with a type.
constexpr StorageType kElementTypes[] = {
    {"torch.float32", "F32", 4},
    {"torch.float64", "F64", 8},
    {"torch.float16", "F16", 2},
    {"torch.bfloat16", "BF16", 2},
    {"torch.int64", "I64", 8},
    {"torch.int32", "I32", 4},
    {"torch.int16", "I16", 2},
    {"torch.int8", "I8", 1},
    {"torch.uint8", "U8", 1},
    {"torch.bool", "BOOL", 1},
    {"torch.uint16", "U16", 2},
    {"torch.uint32", "U32", 4},
    {"torch.uint64", "U64", 8},
    {"torch.complex64", "C64", 8},
    {"torch.float8_e4m3fn", "F8_E4M3", 1},
    {"torch.float8_e5m2", "F8_E5M2", 1},
    {"torch.float8_e4m3fnuz", "F8_E4M3FNUZ", 1},
    {"torch.float8_e5m2fnuz", "F8_E5M2FNUZ", 1},
    {"torch.float8_e8m0fnu", "F8_E8M0", 1},
    {"torch.complex32", "C32", 4},
    {"torch.complex128", "C128", 16},
};

const StorageType* find(std::span<const StorageType> types, std::string_view name) {
  const auto found = std::find_if(types.begin(), types.end(),
                                  [&](const StorageType& type) { return type.name == name; });
  return found == types.end() ? nullptr : &*found;
}

// Modules and functions by which a pickle does harm. Here nothing is called, whatever its name is:
// they are known so that the file's owner is told, and need not be all that there are.
constexpr std::string_view kHarmfulModules[] = {"os.",     "posix.",     "nt.",    "subprocess.",
                                                "sys.",    "importlib.", "runpy.", "pty.",
                                                "socket.", "shutil."};
constexpr std::string_view kHarmfulBuiltIn[] = {"eval", "exec", "execfile", "compile",
                                                "open", "file", "apply",    "__import__"};

bool is_harmful(std::string_view global) {
  // Python 2 and 3 have them in modules of two names.
  for (const std::string_view module : {"__builtin__.", "builtins."}) {
    if (!global.starts_with(module)) continue;
    return std::ranges::find(kHarmfulBuiltIn, global.substr(module.size())) !=
           std::end(kHarmfulBuiltIn);
  }
  return std::ranges::any_of(kHarmfulModules,
                             [&](std::string_view module) { return global.starts_with(module); });
}

}  // namespace

std::string printable(std::string_view name) {
  constexpr std::size_t kShown = 80;
  std::string text(name.substr(0, kShown));
  for (char& c : text) {
    if (std::isprint(static_cast<unsigned char>(c)) == 0) c = '?';
  }
  return name.size() > kShown ? text + "..." : text;
}

std::string PickleValue::describe() const {
  constexpr std::array kKinds{"None",      "a bool",   "an int",       "an int", "a float",
                              "a str",     "a tuple",  "a list",       "a dict", "the name ",
                              "a storage", "a tensor", "an object of "};
  const bool named = kind == Kind::kGlobal || kind == Kind::kOpaque;
  return concat(kKinds.at(static_cast<std::size_t>(kind)), named ? printable(text) : "");
}

const StorageType* storage_type(std::string_view global) { return find(kStorageTypes, global); }

const StorageType* element_type(std::string_view global) { return find(kElementTypes, global); }

PickleName pickle_name(std::string_view global) {
  if (global == "collections.OrderedDict") return PickleName::kOrderedDict;
  if (global == "torch._utils._rebuild_tensor_v2") return PickleName::kRebuildTensor;
  if (global == "torch._utils._rebuild_parameter" ||
      global == "torch._utils._rebuild_parameter_with_state") {
    return PickleName::kRebuildParameter;
  }
  if (global == "torch._utils._rebuild_tensor_v3") return PickleName::kRebuildTyped;
  if (storage_type(global) != nullptr) return PickleName::kStorageType;
  if (element_type(global) != nullptr) return PickleName::kElementType;
  return is_harmful(global) ? PickleName::kHarmful : PickleName::kForeign;
}

}  // namespace lockstep
