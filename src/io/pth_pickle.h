#pragma once
// The part of Python's pickles (protocol 2) that torch.save writes for weights. A pickle is a
// program for a machine with a stack; this one makes plain values and tensors and calls nothing:
// what a file names is looked up in a table of known names, and anything else is refused.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/pickle_value.h"

namespace lockstep {

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
  std::size_t size() const { return at_; }
  /// Every storage, in the order of their first mention.
  const std::vector<const PickleValue*>& storages() const { return storages_; }

 private:
  using Value = PickleValue;
  using Kind = PickleValue::Kind;

  // --- bytes ---
  std::uint64_t number(std::size_t length);
  std::string_view chars(std::uint64_t length);
  std::string_view line();

  // --- the stack ---
  Value& make(Kind kind);
  void push(Value& value) { stack_.push_back(&value); }
  Value& top() const;
  Value& pop();
  std::vector<const Value*> pop_to_mark();

  // --- what the operations do ---
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
  Value& make_parameter(const Value& arguments);
  Value& make_opaque(const Value& global);
  void give_state();
  void push_storage();
  [[noreturn]] void refuse(std::string_view module, std::string_view name) const;

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::deque<Value> values_;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::unordered_map<std::uint64_t, Value*> memo_;
  std::deque<std::string> names_;  // of globals
  std::vector<const Value*> storages_;
  std::size_t copied_ = 0;  // items of OrderedDicts that were given as lists
  const Value* root_ = nullptr;
};

}  // namespace lockstep
