#include "io/pth_pickle.h"

#include <algorithm>
#include <initializer_list>

#include "io/file_bytes.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Value = PickleValue;
using Kind = PickleValue::Kind;

// Far above any checkpoint's, and small against its weights.
constexpr std::size_t kMaxValues = std::size_t{1} << 21;
constexpr std::size_t kMaxNesting = 1000;  // of marks

constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;  // of a storage

constexpr unsigned kProtocol = 2;

// Python's names (pickletools) for the bytes.
enum Operation : unsigned {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kInst = 'i',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kBinFloat = 'G',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kStackGlobal = 0x93,
};

void check(bool holds, const char* what) {
  if (!holds) throw DataError(concat("its pickle is damaged: ", what));
}

bool is(const Value& value, std::initializer_list<Kind> kinds) {
  return std::find(kinds.begin(), kinds.end(), value.kind) != kinds.end();
}

}  // namespace

// --- the machine's parts ---

std::uint64_t PickleBytes::number(std::size_t length) {
  check(length <= bytes_.size() - at_, "it is cut off");
  const std::uint64_t value = little_endian(bytes_.subspan(at_, length));
  at_ += length;
  return value;
}

std::string_view PickleBytes::chars(std::uint64_t length) {
  check(length <= bytes_.size() - at_, "it is cut off");
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
  at_ += length;
  return text;
}

std::string_view PickleBytes::line() {
  const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                              bytes_.size() - at_);
  const std::size_t end = rest.find('\n');
  check(end != std::string_view::npos, "it is cut off");
  at_ += end + 1;
  return rest.substr(0, end);
}

Value& PickleStack::make(Kind kind) {
  if (values_.size() == kMaxValues) {
    throw DataError(
        concat("its pickle has more than ", kMaxValues, " values: save the state_dict() alone"));
  }
  values_.push_back({kind, 0, {}, nullptr, {}});
  return values_.back();
}

Value& PickleStack::top() const {
  check(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "it lacks a value");
  return *stack_.back();
}

Value& PickleStack::pop() {
  Value& value = top();
  stack_.pop_back();
  return value;
}

std::vector<const Value*> PickleStack::pop_to_mark() {
  check(!marks_.empty(), "it lacks a mark");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<const Value*> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleStack::mark() {
  check(marks_.size() < kMaxNesting, "it is nested too deeply");
  marks_.push_back(stack_.size());
}

// --- the machine ---

Pickle::Pickle(std::span<const std::byte> bytes) : bytes_(bytes) {
  check(bytes_.number(1) == kProto, "it does not begin as one");
  const std::uint64_t protocol = bytes_.number(1);
  if (protocol != kProtocol) {
    throw DataError(concat("it is a pickle of protocol ", protocol, ", expected ", kProtocol,
                           ": write it with torch.save and no pickle_protocol"));
  }
  run();
  root_ = &stack_.pop();
  check(stack_.empty(), "it ends with more than one value");
}

void Pickle::run() {
  while (true) {
    const auto operation = static_cast<unsigned>(bytes_.number(1));
    if (operation == kStop) return;
    if (run_constant(operation) || run_memo(operation) || run_container(operation) ||
        run_object(operation)) {
      continue;
    }
    throw DataError(concat("its pickle has the operation ", operation, " at byte ", bytes_.at() - 1,
                           ", which torch.save does not write for weights"));
  }
}

bool Pickle::run_constant(unsigned operation) {
  switch (operation) {
    case kNone:
      stack_.push(stack_.make(Kind::kNone));
      return true;
    case kNewTrue:
    case kNewFalse:
      stack_.push(stack_.make(Kind::kBool));
      stack_.top().integer = operation == kNewTrue ? 1 : 0;
      return true;
    case kBinInt:
      push_integer(static_cast<std::int32_t>(bytes_.number(4)));
      return true;
    case kBinInt1:
      push_integer(static_cast<std::int64_t>(bytes_.number(1)));
      return true;
    case kBinInt2:
      push_integer(static_cast<std::int64_t>(bytes_.number(2)));
      return true;
    case kLong1:
      push_long(bytes_.number(1));
      return true;
    case kBinFloat:
      bytes_.chars(8);
      stack_.push(stack_.make(Kind::kFloat));
      return true;
    case kShortBinString:
      push_text(bytes_.number(1));
      return true;
    case kBinString:
    case kBinUnicode:
      push_text(bytes_.number(4));
      return true;
    default:
      return false;
  }
}

void Pickle::push_integer(std::int64_t value) {
  Value& integer = stack_.make(Kind::kInteger);
  integer.integer = value;
  stack_.push(integer);
}

void Pickle::push_long(std::uint64_t length) {
  constexpr std::uint64_t kBytes = sizeof(std::int64_t);
  const std::string_view text = bytes_.chars(length);
  if (length > kBytes) {
    Value& large = stack_.make(Kind::kLargeInteger);
    large.text = text;
    stack_.push(large);
    return;
  }
  std::uint64_t bits = little_endian(std::as_bytes(std::span(text)));
  const bool negative = length > 0 && (static_cast<unsigned char>(text.back()) & 0x80U) != 0;
  if (negative && length < kBytes) bits |= ~std::uint64_t{0} << (8 * length);
  push_integer(static_cast<std::int64_t>(bits));
}

void Pickle::push_text(std::uint64_t length) {
  Value& value = stack_.make(Kind::kText);
  value.text = bytes_.chars(length);
  stack_.push(value);
}

bool Pickle::run_memo(unsigned operation) {
  switch (operation) {
    case kBinPut:
      remember(bytes_.number(1));
      return true;
    case kLongBinPut:
      remember(bytes_.number(4));
      return true;
    case kBinGet:
      recall(bytes_.number(1));
      return true;
    case kLongBinGet:
      recall(bytes_.number(4));
      return true;
    default:
      return false;
  }
}

void Pickle::remember(std::uint64_t place) { memo_[place] = &stack_.top(); }

void Pickle::recall(std::uint64_t place) {
  const auto found = memo_.find(place);
  check(found != memo_.end(), "it recalls what it has not remembered");
  stack_.push(*found->second);
}

bool Pickle::run_container(unsigned operation) {
  switch (operation) {
    case kMark:
      stack_.mark();
      return true;
    case kEmptyTuple:
      stack_.push(stack_.make(Kind::kTuple));
      return true;
    case kEmptyList:
      stack_.push(stack_.make(Kind::kList));
      return true;
    case kEmptyDict:
      stack_.push(stack_.make(Kind::kDict));
      return true;
    case kTuple:
      push_tuple(stack_.pop_to_mark());
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_tuple_of(operation - kTuple1 + 1);
      return true;
    case kAppend: {
      const Value* item = &stack_.pop();
      add_to_list({&item, 1});
      return true;
    }
    case kAppends:
      add_to_list(stack_.pop_to_mark());
      return true;
    case kSetItem: {
      const Value* value = &stack_.pop();
      const Value* const item[] = {&stack_.pop(), value};
      add_to_dict(item);
      return true;
    }
    case kSetItems:
      add_to_dict(stack_.pop_to_mark());
      return true;
    default:
      return false;
  }
}

void Pickle::push_tuple(std::vector<const Value*> items) {
  Value& tuple = stack_.make(Kind::kTuple);
  tuple.items = std::move(items);
  stack_.push(tuple);
}

void Pickle::push_tuple_of(std::size_t count) {
  std::vector<const Value*> items(count);
  for (std::size_t i = count; i > 0; --i) items[i - 1] = &stack_.pop();
  push_tuple(std::move(items));
}

void Pickle::add_to_list(std::span<const Value* const> items) {
  Value& list = stack_.top();
  check(is(list, {Kind::kList, Kind::kOpaque}), "it appends to what is no list");
  list.items.insert(list.items.end(), items.begin(), items.end());
}

void Pickle::add_to_dict(std::span<const Value* const> items) {
  Value& dict = stack_.top();
  check(is(dict, {Kind::kDict, Kind::kOpaque}), "it sets items of what is no dict");
  check(items.size() % 2 == 0, "it has a key without a value");
  dict.items.insert(dict.items.end(), items.begin(), items.end());
}

bool Pickle::run_object(unsigned operation) {
  switch (operation) {
    case kGlobal:
      push_global();
      return true;
    case kInst: {  // a name and a call in one
      const std::string_view module = bytes_.line();
      refuse(module, bytes_.line());
    }
    case kStackGlobal: {
      const std::string_view name = stack_.pop().text;
      refuse(stack_.pop().text, name);
    }
    case kReduce:
    case kNewObj:
      call();
      return true;
    case kBuild:
      give_state();
      return true;
    case kBinPersId:
      push_storage();
      return true;
    default:
      return false;
  }
}

void Pickle::push_global() {
  const std::string_view module = bytes_.line(), name = bytes_.line();
  std::string whole = concat(module, ".", name);
  if (pickle_name(whole) == PickleName::kHarmful) refuse(module, name);
  Value& global = stack_.make(Kind::kGlobal);
  global.text = names_.emplace_back(std::move(whole));
  global.type = storage_type(global.text);
  if (global.type == nullptr) global.type = element_type(global.text);
  stack_.push(global);
}

void Pickle::refuse(std::string_view module, std::string_view name) const {
  throw DataError(concat("it names ", printable(module), ".", printable(name),
                         ", which is no part of weights; nothing of the file has been executed. If "
                         "you trust the file, "
                         "load it in Python and save the model's state_dict() alone"));
}

void Pickle::call() {
  const Value& arguments = stack_.pop();
  const Value& global = stack_.pop();
  check(is(global, {Kind::kGlobal, Kind::kOpaque}) && arguments.kind == Kind::kTuple,
        "it calls what is no name");
  // A class inside of another is the object of a call, of getattr.
  if (global.kind == Kind::kOpaque) return stack_.push(make_opaque(global));
  switch (pickle_name(global.text)) {
    case PickleName::kOrderedDict:
      return stack_.push(make_dict(arguments));
    case PickleName::kRebuildTensor:
      return stack_.push(make_tensor(arguments));
    case PickleName::kRebuildTyped:
      return stack_.push(make_typed_tensor(arguments));
    case PickleName::kRebuildParameter:
      return stack_.push(make_parameter(arguments));
    case PickleName::kForeign:
      return stack_.push(make_opaque(global));
    case PickleName::kStorageType:
    case PickleName::kElementType:
    case PickleName::kHarmful:
      return check(false, "it calls a type of storages");
  }
}

// Python 2 gives the items in the call, later versions set them afterwards.
Value& Pickle::make_dict(const Value& arguments) {
  Value& dict = stack_.make(Kind::kDict);
  if (arguments.items.empty()) return dict;
  check(arguments.items.size() == 1 && arguments.items[0]->kind == Kind::kList,
        "an OrderedDict is of no list");
  // One list may be given to any number of calls.
  copied_ += arguments.items[0]->items.size();
  check(copied_ <= kMaxValues, "its OrderedDicts have too many items");
  for (const Value* item : arguments.items[0]->items) {
    check(is(*item, {Kind::kList, Kind::kTuple}) && item->items.size() == 2,
          "an item of an OrderedDict is no pair");
    dict.items.insert(dict.items.end(), item->items.begin(), item->items.end());
  }
  return dict;
}

// (storage, offset, size, stride, requires_grad, hooks[, metadata])
Value& Pickle::make_tensor(const Value& arguments) {
  constexpr std::size_t kParts = 6;
  const std::vector<const Value*>& items = arguments.items;
  check(items.size() == kParts || items.size() == kParts + 1, "a tensor has too few or many parts");
  check(items[0]->kind == Kind::kStorage && items[1]->kind == Kind::kInteger &&
            items[2]->kind == Kind::kTuple && items[3]->kind == Kind::kTuple,
        "a tensor is not of a storage, an offset, a size and strides");
  if (items.size() > kParts && !items[kParts]->items.empty()) {
    throw DataError("it has a tensor that is a negated or conjugated view: save a clone() of it");
  }
  Value& tensor = stack_.make(Kind::kTensor);
  tensor.items.assign(items.begin(), items.begin() + 4);
  return tensor;
}

// (storage, offset, size, stride, requires_grad, hooks, type[, metadata])
Value& Pickle::make_typed_tensor(const Value& arguments) {
  constexpr std::size_t kType = 6;
  const bool typed =
      arguments.items.size() > kType && arguments.items[kType]->kind == Kind::kGlobal;
  check(typed, "a tensor is of no type of elements");
  if (pickle_name(arguments.items[kType]->text) != PickleName::kElementType) {
    throw DataError(concat("it has a tensor of ", printable(arguments.items[kType]->text),
                           ", expected plain numbers: save the weights as floats"));
  }
  Value untyped = arguments;
  untyped.items.erase(untyped.items.begin() + kType);
  Value& tensor = make_tensor(untyped);
  tensor.type = arguments.items[kType]->type;
  return tensor;
}

// (tensor, requires_grad, hooks[, state])
Value& Pickle::make_parameter(const Value& arguments) {
  check(!arguments.items.empty() && is(*arguments.items[0], {Kind::kTensor, Kind::kOpaque}),
        "a parameter is of no tensor");
  if (arguments.items[0]->kind == Kind::kOpaque) return make_opaque(*arguments.items[0]);
  Value& tensor = stack_.make(Kind::kTensor);
  tensor.items = arguments.items[0]->items;
  tensor.type = arguments.items[0]->type;
  return tensor;
}

Value& Pickle::make_opaque(const Value& made_of) {
  Value& opaque = stack_.make(Kind::kOpaque);
  opaque.text = made_of.text;
  return opaque;
}

// A state dict's own attributes (_metadata) say nothing that is needed.
void Pickle::give_state() {
  stack_.pop();
  check(is(stack_.top(), {Kind::kDict, Kind::kOpaque}), "it gives a state to what has none");
}

// ("storage", type, key, location, elements[, view]); the last is of files only that PyTorch wrote
// before it had zip archives. These have ("module", class, its source's file, source), too.
void Pickle::push_storage() {
  const Value& id = stack_.pop();
  const auto part = [&](std::size_t i, Kind kind) {
    return i < id.items.size() && id.items[i]->kind == kind ? id.items[i] : nullptr;
  };
  const Value* what = part(0, Kind::kText);
  const Value *type = part(1, Kind::kGlobal), *key = part(2, Kind::kText),
              *elements = part(4, Kind::kInteger);
  if (what != nullptr && what->text == "module" && type != nullptr) {
    return stack_.push(make_opaque(*type));
  }
  check(id.kind == Kind::kTuple && what != nullptr && what->text == "storage" && type != nullptr &&
            key != nullptr && elements != nullptr,
        "a storage is not of a type, a key and a number of elements");
  if (pickle_name(type->text) != PickleName::kStorageType) {
    throw DataError(concat("it has a storage of ", printable(type->text),
                           ", expected plain numbers: save the weights as floats"));
  }
  check(elements->integer >= 0 && elements->integer <= kMaxElements,
        "a storage has an impossible number of elements");
  if (id.items.size() > 5 && id.items[5]->kind != Kind::kNone) {
    throw DataError("it has views of storages, of PyTorch before 0.4: save it with a later one");
  }
  Value& storage = stack_.make(Kind::kStorage);
  storage.text = key->text;
  storage.integer = elements->integer;
  storage.type = type->type;
  storages_.push_back(&storage);
  stack_.push(storage);
}

}  // namespace lockstep
