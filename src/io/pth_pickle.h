#pragma once
// The part of Python's pickles (protocol 2) that torch.save writes for weights. A pickle is a
// program for a machine with a stack; this one makes plain values and tensors and calls nothing:
// what a file names is looked up in a table of known names, and an object of anything else is read
// over.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/io/weights.h"

namespace lockstep {

/// The type of a storage's or a tensor's elements.
struct StorageType {
  const char* name;   // "torch.FloatStorage", "torch.uint16"
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
    kTensor,   // `items`: storage, offset, size, stride; `type`, or null: its storage's
    kOpaque,   // an object of the foreign class or function `text`: not made
  };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;
  std::string_view text;
  const StorageType* type = nullptr;
  std::vector<const PickleValue*> items;

  /// "a list", "an object of argparse.Namespace".
  std::string describe() const;
};

/// A name from a file, fit for a message.
std::string printable(std::string_view name);

/// What a global name ("module.name") stands for.
enum class PickleName : std::uint8_t {
  kForeign,  // of what checkpoints hold beside their weights: its place is read over
  kHarmful,  // runs programs or opens files: refused
  kOrderedDict,
  kRebuildTensor,
  kRebuildTyped,  // a tensor that says its type, of a storage of bytes
  kRebuildParameter,
  kStorageType,
  kElementType,
};

PickleName pickle_name(std::string_view global);
/// Null for a name that is no kStorageType.
const StorageType* storage_type(std::string_view global);
/// Null for a name that is no kElementType.
const StorageType* element_type(std::string_view global);

/// The pickle's bytes, from its beginning on. Each throws DataError where they are cut off.
class PickleBytes {
 public:
  explicit PickleBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  /// How many have been read.
  std::size_t at() const { return at_; }
  /// The lowest byte first.
  std::uint64_t number(std::size_t length);
  std::string_view chars(std::uint64_t length);
  std::string_view line();

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

/// The machine's stack, with its marks, and the memory of all values. Throws DataError where a
/// value or a mark is missing, or there are too many.
class PickleStack {
 public:
  /// A new value, which is not on the stack yet.
  PickleValue& make(PickleValue::Kind kind);
  void push(PickleValue& value) { stack_.push_back(&value); }
  /// The value above the last mark.
  PickleValue& top() const;
  PickleValue& pop();
  void mark();
  /// All values above the last mark, which goes with them.
  std::vector<const PickleValue*> pop_to_mark();
  /// Whether there is neither a value nor a mark.
  bool empty() const { return stack_.empty() && marks_.empty(); }

 private:
  std::deque<PickleValue> values_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
};

/// A pickle that has been read. Throws DataError, without the file's name. Values live as long as
/// the pickle.
class Pickle {
 public:
  /// Reads the pickle that `bytes`, which must outlive it, begin with.
  explicit Pickle(std::span<const std::byte> bytes);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }
  /// How many bytes it has.
  std::size_t size() const { return bytes_.at(); }
  /// Every storage, in the order of their first mention.
  const std::vector<const PickleValue*>& storages() const { return storages_; }

 private:
  using Value = PickleValue;
  using Kind = PickleValue::Kind;

  void run();
  bool run_constant(unsigned operation);
  bool run_memo(unsigned operation);
  bool run_container(unsigned operation);
  bool run_object(unsigned operation);
  void push_integer(std::int64_t value);
  void push_long(std::uint64_t length);
  void push_text(std::uint64_t length);
  void push_tuple(std::vector<const Value*> items);
  void push_tuple_of(std::size_t count);
  void remember(std::uint64_t place);
  void recall(std::uint64_t place);
  void add_to_list(std::span<const Value* const> items);
  void add_to_dict(std::span<const Value* const> items);
  void push_global();
  void call();
  Value& make_dict(const Value& arguments);
  Value& make_tensor(const Value& arguments);
  Value& make_typed_tensor(const Value& arguments);
  Value& make_parameter(const Value& arguments);
  Value& make_opaque(const Value& made_of);
  void give_state();
  void push_storage();
  [[noreturn]] void refuse(std::string_view module, std::string_view name) const;

  PickleBytes bytes_;
  PickleStack stack_;
  std::unordered_map<std::uint64_t, Value*> memo_;
  std::deque<std::string> names_;  // of globals
  std::vector<const Value*> storages_;
  std::size_t copied_ = 0;  // items of OrderedDicts that were given as lists
  const Value* root_ = nullptr;
};

/// The bytes of a storage, as many as it says; throws DataError when the file has others.
using ReadStorage = std::function<std::vector<std::byte>(const PickleValue& storage)>;

/// The tensors of a state dict, or of the state dict that a checkpoint has under "state_dict",
/// "model" or "model_state_dict"; rows contiguous, each storage read once, and none that the model
/// does not need. Throws DataError, without the file's name, where there are none, and for tensors
/// that reach outside of their storage. `file_bytes`, the file's length, bounds what is allocated.
TensorMap read_model_tensors(const PickleValue& root, std::uint64_t file_bytes,
                             const ReadStorage& read);

}  // namespace lockstep
