#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/utf8.h"
#include "io/pth_pickle.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Kind = PickleValue::Kind;

constexpr std::size_t kMaxRank = 64;  // PyTorch's
// Tensors may share a storage, or repeat its elements by a stride of 0. All of them together may be
// so many times as large as the file.
constexpr std::uint64_t kMaxGrowth = 16;
constexpr std::uint64_t kFreeBytes = std::uint64_t{64} << 20;

// Where a tensor's elements are in its storage.
struct View {
  std::string name;
  const PickleValue* storage;
  const StorageType* type;  // of its elements
  std::uint64_t offset = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> strides;
  std::uint64_t elements = 1;

  std::uint64_t element_bytes() const { return type->bytes; }
  std::uint64_t stored_bytes() const {
    return static_cast<std::uint64_t>(storage->integer) * storage->type->bytes;
  }
  std::uint64_t bytes() const { return elements * element_bytes(); }
};

template <typename... Parts>
void check(bool holds, const Parts&... parts) {
  if (!holds) throw DataError(concat(parts...));
}

// --- which entries are the model's ---

bool holds_tensors(const PickleValue& value) {
  if (value.kind != Kind::kDict) return false;
  for (std::size_t i = 1; i < value.items.size(); i += 2) {
    if (value.items[i]->kind == Kind::kTensor) return true;
  }
  return false;
}

const PickleValue* entry_of(const PickleValue& dict, std::string_view key) {
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == Kind::kText && dict.items[i]->text == key) return dict.items[i + 1];
  }
  return nullptr;
}

// "epoch, optimizer": what the file has instead, for a message.
std::string keys_of(const PickleValue& dict) {
  constexpr std::size_t kShown = 8;
  std::string keys;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    if (i == 2 * kShown) return keys + ", ...";
    const PickleValue& key = *dict.items[i];
    const bool plain = key.kind == Kind::kText && is_utf8(key.text);
    keys += (keys.empty() ? "" : ", ") + (plain ? std::string(key.text) : key.describe());
    if (dict.items[i + 1]->kind == Kind::kOpaque) {
      keys += concat(" (", dict.items[i + 1]->describe(), ")");
    }
  }
  return keys;
}

const PickleValue& model_of(const PickleValue& root) {
  constexpr const char* kExpected =
      "expected a state dict: tensors under their names, or a checkpoint that has them under "
      "'state_dict', 'model' or 'model_state_dict'; ";
  constexpr const char* kRemedy =
      ". If you trust the file, load it in Python and save the model's state_dict() alone";
  check(root.kind == Kind::kDict, kExpected, "it holds ", root.describe(), kRemedy);
  for (const char* key : {"state_dict", "model", "model_state_dict"}) {
    const PickleValue* model = entry_of(root, key);
    if (model != nullptr && holds_tensors(*model)) return *model;
  }
  check(holds_tensors(root), kExpected, "it holds a dict of [", keys_of(root), "]", kRemedy);
  return root;
}

// Whether it may be weights, all the same: further state dicts, and tensors of another kind, such
// as sparse ones.
bool may_be_weights(const PickleValue& value) {
  return holds_tensors(value) ||
         (value.kind == Kind::kOpaque && (value.text.starts_with("torch._utils._rebuild") ||
                                          value.text.starts_with("torch._tensor._rebuild")));
}

// --- one tensor ---

std::uint64_t extent(const PickleValue& value, const std::string& name, const char* what) {
  check(value.kind == Kind::kInteger && value.integer >= 0, "tensor ", name, " has the ", what, " ",
        value.kind == Kind::kInteger ? std::to_string(value.integer) : value.describe());
  return static_cast<std::uint64_t>(value.integer);
}

// Throws unless the last element lies in the storage, too.
void check_reach(const View& view) {
  const std::uint64_t stored = view.stored_bytes() / view.element_bytes();
  std::uint64_t last = view.offset;
  bool fits = true;
  for (std::size_t axis = 0; axis < view.shape.size() && view.elements > 0; ++axis) {
    const auto steps = static_cast<std::uint64_t>(view.shape[axis]) - 1;
    std::uint64_t way = 0;
    fits = fits && !__builtin_mul_overflow(steps, view.strides[axis], &way) &&
           !__builtin_add_overflow(last, way, &last);
  }
  fits = fits && (view.elements == 0 ? last <= stored : last < stored);
  check(fits, "tensor ", view.name, " reaches outside of its storage, which has ", stored,
        " elements");
}

View view_of(const std::string& name, const PickleValue& tensor) {
  const PickleValue* storage = tensor.items[0];
  const StorageType* type = tensor.type == nullptr ? storage->type : tensor.type;
  View view{name, storage, type, extent(*tensor.items[1], name, "offset"), {}, {}};
  const auto &size = tensor.items[2]->items, &strides = tensor.items[3]->items;
  check(size.size() == strides.size() && size.size() <= kMaxRank, "tensor ", name, " has ",
        size.size(), " extents and ", strides.size(), " strides");
  bool empty = false;
  for (std::size_t axis = 0; axis < size.size(); ++axis) {
    const std::uint64_t length = extent(*size[axis], name, "extent");
    view.strides.push_back(extent(*strides[axis], name, "stride"));
    view.shape.push_back(static_cast<std::int64_t>(length));
    empty = empty || length == 0;
  }
  if (empty) view.elements = 0;
  for (std::size_t axis = 0; axis < size.size() && !empty; ++axis) {
    const auto length = static_cast<std::uint64_t>(view.shape[axis]);
    check(!__builtin_mul_overflow(view.elements, length, &view.elements), "tensor ", name,
          " has an impossible shape");
  }
  check_reach(view);
  return view;
}

bool is_contiguous(const View& view) {
  std::uint64_t expected = 1;
  for (std::size_t axis = view.shape.size(); axis > 0; --axis) {
    const auto length = static_cast<std::uint64_t>(view.shape[axis - 1]);
    if (length > 1 && view.strides[axis - 1] != expected) return false;
    expected *= length;
  }
  return true;
}

// Element by element, the last axis fastest.
std::vector<std::byte> gather(const View& view, const std::vector<std::byte>& storage) {
  const std::uint64_t width = view.element_bytes();
  std::vector<std::byte> data(view.bytes());
  std::vector<std::uint64_t> index(view.shape.size(), 0);
  std::uint64_t from = view.offset;
  for (std::uint64_t i = 0; i < view.elements; ++i) {
    std::memcpy(&data[i * width], &storage[from * width], width);
    for (std::size_t axis = view.shape.size(); axis > 0; --axis) {
      const std::size_t a = axis - 1;
      from += view.strides[a];
      if (++index[a] < static_cast<std::uint64_t>(view.shape[a])) break;
      from -= index[a] * view.strides[a];
      index[a] = 0;
    }
  }
  return data;
}

std::vector<std::byte> contents(const View& view, const std::vector<std::byte>& storage) {
  if (view.elements == 0) return {};
  if (!is_contiguous(view)) return gather(view, storage);
  const auto begin =
      storage.begin() + static_cast<std::ptrdiff_t>(view.offset * view.element_bytes());
  return {begin, begin + static_cast<std::ptrdiff_t>(view.bytes())};
}

// --- all of them ---

std::vector<View> views_of(const PickleValue& model) {
  std::vector<View> views;
  for (std::size_t i = 0; i < model.items.size(); i += 2) {
    const PickleValue &key = *model.items[i], &value = *model.items[i + 1];
    if (value.kind != Kind::kTensor && !may_be_weights(value)) continue;
    check(key.kind == Kind::kText && is_utf8(key.text), "a name in the state dict is ",
          key.kind == Kind::kText ? "not UTF-8" : key.describe());
    const std::string name(key.text);
    check(value.kind == Kind::kTensor, "expected a tensor under ", name, " in the state dict, got ",
          value.describe(), ": save a state dict of dense tensors alone");
    views.push_back(view_of(name, value));
  }
  return views;
}

void check_growth(const std::vector<View>& views, std::uint64_t file_bytes) {
  const std::uint64_t limit = file_bytes * kMaxGrowth + kFreeBytes;
  std::uint64_t bytes = 0;
  for (const View& view : views) {
    std::uint64_t own = 0;
    check(!__builtin_mul_overflow(view.elements, view.element_bytes(), &own) &&
              !__builtin_add_overflow(bytes, own, &bytes) && bytes <= limit,
          "its tensors, which share storages or repeat elements, would take more than ", limit,
          " bytes from a file of ", file_bytes);
  }
}

}  // namespace

TensorMap read_model_tensors(const PickleValue& root, std::uint64_t file_bytes,
                             const ReadStorage& read) {
  std::vector<View> views = views_of(model_of(root));
  check_growth(views, file_bytes);
  // Those of one storage follow each other: it is read once, and gone when the next one comes.
  std::stable_sort(views.begin(), views.end(),
                   [](const View& a, const View& b) { return a.storage->text < b.storage->text; });
  TensorMap tensors;
  const PickleValue* held = nullptr;
  std::vector<std::byte> storage;
  for (const View& view : views) {
    if (held == nullptr || held->text != view.storage->text) {
      storage = {};
      storage = read(*view.storage);
    }
    held = view.storage;
    check(storage.size() == view.stored_bytes(), "storage ", view.storage->text,
          " is given two sizes");
    HostTensor tensor{view.type->dtype, view.shape, contents(view, storage)};
    check(tensors.emplace(view.name, std::move(tensor)).second, "its state dict has ", view.name,
          " twice");
  }
  return tensors;
}

}  // namespace lockstep
