#include "lockstep/nn/weights.h"

#include <cstring>
#include <set>
#include <string_view>

namespace lockstep {
namespace {

// A tensor of the network by its name in a file.
struct Entry {
  std::string name;
  std::vector<std::int64_t> shape;
  float* data;            // device memory
  std::int64_t* counter;  // host memory, instead of `data`
  std::int64_t elements;

  const char* dtype() const { return counter != nullptr ? "I64" : "F32"; }
  std::size_t bytes() const {
    return counter != nullptr ? sizeof(std::int64_t)
                              : static_cast<std::size_t>(elements) * sizeof(float);
  }
  Tensor tensor() const { return Tensor(data, Shape{1, elements}); }
};

std::vector<std::int64_t> extents_of(const Shape& shape) {
  std::vector<std::int64_t> extents;
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return extents;
}

std::vector<Entry> entries_of(const ParameterStore& store) {
  LOCKSTEP_CHECK(store.allocated(), "the parameters are not allocated yet: build a network first");
  std::vector<Entry> entries;
  for (const auto& p : store.parameters()) {
    entries.push_back({p->name, extents_of(p->shape), p->value, nullptr, p->elements});
  }
  for (const auto& s : store.batch_norms()) {
    const std::int64_t channels = s->channels;
    entries.push_back({s->name + ".running_mean", {channels}, s->running_mean, nullptr, channels});
    entries.push_back({s->name + ".running_var", {channels}, s->running_var, nullptr, channels});
    entries.push_back({s->name + ".num_batches_tracked", {}, nullptr, &s->num_batches_tracked, 1});
  }
  return entries;
}

std::string to_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += (text.empty() ? "" : ", ") + std::to_string(extent);
  }
  return "[" + text + "]";
}

std::string without_prefix(const std::string& name) {
  constexpr std::string_view kPrefix = "module.";  // DataParallel's
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

struct Match {
  const Entry* entry;
  const HostTensor* tensor;
};

// Compares names, types and shapes; copies nothing yet.
std::vector<Match> match(const std::vector<Entry>& entries, const TensorMap& tensors,
                         ImportSummary& summary) {
  std::map<std::string, const HostTensor*> by_name;
  for (const auto& [name, tensor] : tensors) by_name.emplace(without_prefix(name), &tensor);
  std::vector<Match> matches;
  for (const Entry& entry : entries) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) {
      // Files from before PyTorch counted batches lack the counter.
      if (entry.counter == nullptr) summary.missing.push_back(entry.name);
      continue;
    }
    const HostTensor& tensor = *found->second;
    by_name.erase(found);
    if (tensor.dtype != entry.dtype()) {
      summary.skipped.push_back(
          concat(entry.name, ": ", tensor.dtype, " in the file, ", entry.dtype(), " here"));
    } else if (tensor.shape != entry.shape || tensor.data.size() != entry.bytes()) {
      summary.skipped.push_back(concat(entry.name, ": ", to_text(tensor.shape), " in the file, ",
                                       to_text(entry.shape), " here"));
    } else {
      matches.push_back({&entry, &tensor});
    }
  }
  for (const auto& [name, tensor] : by_name) summary.unexpected.push_back(name);
  return matches;
}

void append_list(std::string& text, const char* title, const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 8;
  if (items.empty()) return;
  text += concat("\n  ", title, ":");
  for (std::size_t i = 0; i < items.size() && i < kShown; ++i) text += "\n    " + items[i];
  if (items.size() > kShown) text += concat("\n    and ", items.size() - kShown, " more");
}

void check_complete(const ImportSummary& summary) {
  std::string text;
  append_list(text, "do not fit", summary.skipped);
  append_list(text, "are missing in the file", summary.missing);
  append_list(text, "are unknown to the network", summary.unexpected);
  if (!text.empty()) throw DataError("the weights are of another network; these tensors" + text);
}

}  // namespace

TensorMap export_weights(const ParameterStore& store, Backend& backend) {
  TensorMap tensors;
  for (const Entry& entry : entries_of(store)) {
    HostTensor tensor{entry.dtype(), entry.shape, std::vector<std::byte>(entry.bytes())};
    HostTensor& stored = tensors[entry.name] = std::move(tensor);
    if (entry.counter != nullptr) {
      std::memcpy(stored.data.data(), entry.counter, entry.bytes());
    } else {
      backend.download(stored.data.data(), entry.tensor());
    }
  }
  backend.synchronize();
  return tensors;
}

ImportSummary import_weights(const TensorMap& tensors, ParameterStore& store, Backend& backend,
                             bool strict) {
  ImportSummary summary;
  const std::vector<Entry> entries = entries_of(store);
  const std::vector<Match> matches = match(entries, tensors, summary);
  if (strict) check_complete(summary);
  for (const auto& [entry, tensor] : matches) {
    if (entry->counter != nullptr) {
      std::memcpy(entry->counter, tensor->data.data(), entry->bytes());
    } else {
      backend.upload(entry->tensor(), tensor->data.data());
    }
    ++summary.loaded;
  }
  backend.synchronize();
  return summary;
}

}  // namespace lockstep
