#include <algorithm>
#include <cstring>
#include <set>

#include "core/words.h"
#include "io/weight_files.h"
#include "lockstep/nn/parameter_store.h"
#include "nn/graph/weight_names.h"

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
    if (s->slice_of != nullptr) continue;
    const std::int64_t channels = s->channels;
    entries.push_back({s->name + ".running_mean", {channels}, s->running_mean, nullptr, channels});
    entries.push_back({s->name + ".running_var", {channels}, s->running_var, nullptr, channels});
    entries.push_back({s->name + ".num_batches_tracked", {}, nullptr, &s->num_batches_tracked, 1});
  }
  return entries;
}

std::string to_text(const std::vector<std::int64_t>& shape) { return "[" + joined(shape) + "]"; }

// What stands for the tensors when names are compared: those with a counter's name are left out,
// since files from before PyTorch counted batches lack them. The last is that of a model whose
// weights were averaged.
bool is_counter(const std::string& name) {
  return name.ends_with("num_batches_tracked") || name.ends_with("n_averaged");
}

// What a file may have beside the network's tensors: no weight is of such a type.
bool is_beside(const std::string& name, const HostTensor& tensor) {
  return is_counter(name) || float_bytes(tensor.dtype) == 0;
}

NameMapping mapping_of(const std::vector<Entry>& entries, const TensorMap& tensors) {
  ShapesByName file, network;
  for (const auto& [name, tensor] : tensors) {
    if (!is_beside(name, tensor)) file.emplace(name, tensor.shape);
  }
  for (const Entry& entry : entries) {
    if (entry.counter == nullptr) network.emplace(entry.name, entry.shape);
  }
  return find_mapping(file, network);
}

struct Match {
  const Entry* entry;
  const HostTensor* tensor;
};

bool fits_type(const Entry& entry, const HostTensor& tensor) {
  return entry.counter != nullptr ? to_count(tensor).has_value() : float_bytes(tensor.dtype) > 0;
}

// A count has one element, whatever its shape.
bool fits_shape(const Entry& entry, const HostTensor& tensor) {
  const std::size_t bytes = static_cast<std::size_t>(entry.elements) * float_bytes(tensor.dtype);
  return entry.counter != nullptr || (tensor.shape == entry.shape && tensor.data.size() == bytes);
}

// Compares names, types and shapes; copies nothing yet.
std::vector<Match> match(const std::vector<Entry>& entries, const TensorMap& tensors,
                         ImportSummary& summary) {
  const NameMapping mapping = mapping_of(entries, tensors);
  summary.file_prefix = mapping.strip;
  summary.network_prefix = mapping.add;
  std::set<std::string> used;
  std::vector<Match> matches;
  for (const Entry& entry : entries) {
    const std::string source = mapping.source_of(entry.name, tensors);
    if (source.empty()) {
      if (entry.counter == nullptr) summary.missing.push_back(entry.name);
      continue;
    }
    used.insert(source);
    const HostTensor& tensor = tensors.at(source);
    if (!fits_type(entry, tensor)) {
      summary.skipped.push_back(
          concat(entry.name, ": ", tensor.dtype, " in the file, ", entry.dtype(), " here"));
    } else if (!fits_shape(entry, tensor)) {
      summary.skipped.push_back(concat(entry.name, ": ", to_text(tensor.shape), " in the file, ",
                                       to_text(entry.shape), " here"));
    } else {
      matches.push_back({&entry, &tensor});
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!used.contains(name)) summary.unexpected.push_back(name);
  }
  return matches;
}

constexpr std::size_t kShown = 8;

void append_list(std::string& text, const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return;
  text += concat("\n  ", title, ":");
  for (std::size_t i = 0; i < items.size() && i < kShown; ++i) text += "\n    " + items[i];
  if (items.size() > kShown) text += concat("\n    and ", items.size() - kShown, " more");
}

// "; 3 TITLE: a, b, c"
std::string clause(const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return "";
  return concat("; ", items.size(), " ", title, ": ", joined(items, kShown));
}

/// Whether the file differs from the network by a second head alone ("aux_classifier", "aux").
bool is_second_head(const std::vector<std::string>& unexpected) {
  return !unexpected.empty() &&
         std::all_of(unexpected.begin(), unexpected.end(),
                     [](const std::string& name) { return name.starts_with("aux"); });
}

// As device 0's statistics go to all devices.
void begin_slices(const ParameterStore& store, Backend& backend) {
  for (const auto& state : store.batch_norms()) {
    if (state->slice_of == nullptr) continue;
    const Shape row{1, state->channels};
    backend.copy(Tensor(state->slice_of->running_mean, row), Tensor(state->running_mean, row),
                 false);
    backend.copy(Tensor(state->slice_of->running_var, row), Tensor(state->running_var, row), false);
    state->num_batches_tracked = state->slice_of->num_batches_tracked;
  }
}

void check_complete(const ImportSummary& summary, const TensorMap& tensors) {
  std::vector<std::string> unknown = summary.unexpected;
  std::erase_if(unknown,
                [&](const std::string& name) { return is_beside(name, tensors.at(name)); });
  std::string text;
  append_list(text, "do not fit", summary.skipped);
  append_list(text, "are missing in the file", summary.missing);
  append_list(text, "are unknown to the network", unknown);
  if (is_second_head(unknown)) {
    text += "\n  these are of a second head, which model.aux_head = true gives the network";
  }
  if (!text.empty()) throw DataError("the weights are of another network; these tensors" + text);
}

}  // namespace

TensorMap state_dict(const ParameterStore& store, Backend& backend) {
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

TensorMap select_prefix(TensorMap tensors, const std::string& prefix) {
  const auto begins = [&](const auto& tensor) { return tensor.first.starts_with(prefix); };
  if (std::any_of(tensors.begin(), tensors.end(), begins)) {
    std::erase_if(tensors, [&](const auto& tensor) { return !begins(tensor); });
  }
  return tensors;
}

ImportSummary load_state_dict(const TensorMap& tensors, ParameterStore& store, Backend& backend,
                              bool strict) {
  ImportSummary summary;
  const std::vector<Entry> entries = entries_of(store);
  const std::vector<Match> matches = match(entries, tensors, summary);
  check_convention(summary.missing, summary.unexpected);
  if (strict) check_complete(summary, tensors);
  std::vector<std::vector<float>> converted;  // as long as uploads may read them
  for (const auto& [entry, tensor] : matches) {
    if (entry->counter != nullptr) {
      *entry->counter = *to_count(*tensor);
    } else if (tensor->dtype == entry->dtype()) {
      backend.upload(entry->tensor(), tensor->data.data());
    } else {
      backend.upload(entry->tensor(), converted.emplace_back(to_floats(*tensor)).data());
    }
    ++summary.loaded;
  }
  begin_slices(store, backend);
  backend.synchronize();
  return summary;
}

std::string describe_import(const ImportSummary& summary) {
  const std::size_t all =
      static_cast<std::size_t>(summary.loaded) + summary.skipped.size() + summary.missing.size();
  std::string text = concat(summary.loaded, " of the network's ", all, " tensors loaded");
  if (!summary.file_prefix.empty() || !summary.network_prefix.empty()) {
    text += concat(" (\"", summary.file_prefix, "NAME\" in the file is \"", summary.network_prefix,
                   "NAME\" here)");
  }
  return text + clause("skipped", summary.skipped) + clause("not in the file", summary.missing) +
         clause("of the file not used", summary.unexpected);
}

}  // namespace lockstep
