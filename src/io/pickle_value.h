#pragma once
// What the pickles of weights are made of, and the names that they may mention.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The type of a storage's elements.
struct StorageType {
  const char* name;   // "torch.FloatStorage"
  const char* dtype;  // "F32", as in HostTensor
  std::uint64_t bytes;
};

struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInteger,       // `integer`
    kLargeInteger,  // more than 64 bits: `text` holds its bytes
    kFloat,
    kText,     // `text`
    kTuple,    // `items`
    kList,     // `items`
    kDict,     // `items`: key, value, key, value, ...
    kGlobal,   // `text`: "module.name"
    kStorage,  // `text`: its key; `integer`: its elements; `type`
    kTensor,   // `items`: storage, offset, size, stride
    kOpaque,   // an object of the class or function `text` that stands beside weights: not made
  };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;
  std::string_view text;
  const StorageType* type = nullptr;
  std::vector<const PickleValue*> items;

  /// "a list", "an object of argparse.Namespace".
  std::string describe() const;
};

/// What a global name ("module.name") stands for.
enum class PickleName : std::uint8_t {
  kUnknown,
  kOrderedDict,
  kRebuildTensor,
  kRebuildParameter,
  kStorageType,
  kBeside,  // of what checkpoints hold beside their weights: its place is read over
};

PickleName pickle_name(std::string_view global);
/// Null for a name that is no kStorageType.
const StorageType* storage_type(std::string_view global);

}  // namespace lockstep
