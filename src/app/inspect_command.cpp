// lockstep inspect: what a file of weights holds, and how two of them differ.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "app/command.h"
#include "compare/table.h"
#include "core/json.h"
#include "io/weight_files.h"
#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "run/inspect_weights.h"
#include "run/trained_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct InspectArguments {
  CommonArguments common;
  std::filesystem::path target;  // a file of weights, a checkpoint, a run folder
  std::filesystem::path other;   // to compare with; empty: none
  std::string filter;            // --filter GLOB of names; empty: all
};
constexpr const char* kHashName = "XXH3, 64 bits";

struct Inspected {
  fs::path path;
  const char* format = "";
  SafetensorsFile file;  // of its tensors, those that --filter asks for
  fs::path state;        // the training state beside it; empty: none
  Metadata state_metadata;
  std::string state_problem;  // why it cannot be used; empty: it can, or there is none
};

const char* describe_format(WeightFileKind kind) {
  switch (kind) {
    case WeightFileKind::kZip:
      return "torch.save (zip)";
    case WeightFileKind::kLegacyPth:
      return "torch.save (before PyTorch 1.6)";
    default:
      return "safetensors";
  }
}

std::string entry(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

/// A damaged state is a finding, not the end: the weights are what was asked for.
void read_state(Inspected& inspected) {
  if (entry(inspected.file.metadata, "lockstep.kind") != "weights") return;
  const fs::path path = state_path(inspected.path);
  if (!fs::exists(path)) return;
  inspected.state = path;
  try {
    inspected.state_metadata = read_weights(path).metadata;
  } catch (const DataError& error) {
    inspected.state_problem = error.what();
    return;
  }
  if (!is_pair(inspected.file.metadata, inspected.state_metadata))
    inspected.state_problem = "it does not belong to these weights";
}

void keep_matching(const std::string& glob, Inspected& inspected) {
  TensorMap& tensors = inspected.file.tensors;
  const std::string first = tensors.empty() ? "" : ", such as " + tensors.begin()->first;
  if (glob.empty()) return;
  std::erase_if(tensors, [&](const auto& tensor) {
    return fnmatch(glob.c_str(), tensor.first.c_str(), 0) != 0;
  });
  if (!tensors.empty()) return;
  throw ConfigError(fmt::format("--filter {}: expected a pattern that names of {} match{}", glob,
                                inspected.path.string(), first));
}

Inspected read(const fs::path& target, const std::string& glob) {
  Inspected inspected;
  inspected.path = checkpoint_of(target);
  inspected.file = read_weights(inspected.path);
  inspected.format = describe_format(weight_file_kind(inspected.path));
  read_state(inspected);
  keep_matching(glob, inspected);
  return inspected;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string number_text(const std::optional<double>& value) {
  return value ? fmt::format("{:.4g}", *value) : "-";
}

// --- one file ---

struct Findings {
  std::vector<TensorFacts> tensors;
  std::vector<BatchNormHealth> batch_norms;
  std::string hash;

  explicit Findings(const SafetensorsFile& file)
      : tensors(examine_tensors(file.tensors)),
        batch_norms(examine_batch_norms(file.tensors, file.metadata)),
        hash(tensors_hash(file.tensors)) {}

  std::int64_t elements() const {
    std::int64_t sum = 0;
    for (const TensorFacts& tensor : tensors) sum += tensor.elements;
    return sum;
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const TensorFacts& tensor : tensors) sum += tensor.bytes;
    return sum;
  }
  std::map<std::string, std::int64_t> by_type() const {
    std::map<std::string, std::int64_t> count;
    for (const TensorFacts& tensor : tensors) ++count[tensor.dtype];
    return count;
  }
  bool sound() const {
    return std::all_of(tensors.begin(), tensors.end(),
                       [](const TensorFacts& t) { return t.nans + t.infinities == 0; }) &&
           std::all_of(batch_norms.begin(), batch_norms.end(),
                       [](const BatchNormHealth& layer) { return layer.problems.empty(); });
  }
};

Json state_json(const Inspected& inspected) {
  if (inspected.state.empty()) return nullptr;
  Json json{{"file", inspected.state.string()}, {"metadata", inspected.state_metadata}};
  json["problem"] = inspected.state_problem.empty() ? Json(nullptr) : Json(inspected.state_problem);
  return json;
}

Json to_json(const TensorFacts& tensor) {
  return {{"name", tensor.name},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"elements", tensor.elements},
          {"bytes", tensor.bytes},
          {"min", json_or_null(tensor.min)},
          {"max", json_or_null(tensor.max)},
          {"nan", tensor.nans},
          {"infinite", tensor.infinities},
          {"hash", tensor.hash}};
}

Json to_json(const BatchNormHealth& layer) {
  return {{"layer", layer.layer},
          {"channels", layer.channels},
          {"running_mean", {json_or_null(layer.mean_min), json_or_null(layer.mean_max)}},
          {"running_var", {json_or_null(layer.var_min), json_or_null(layer.var_max)}},
          {"num_batches_tracked", json_or_null(layer.num_batches_tracked)},
          {"problems", layer.problems}};
}

Json to_json(const Inspected& inspected, const Findings& findings) {
  Json json{{"file", inspected.path.string()},     {"format", inspected.format},
            {"hash_algorithm", kHashName},         {"hash", findings.hash},
            {"metadata", inspected.file.metadata}, {"state", state_json(inspected)},
            {"elements", findings.elements()},     {"bytes", findings.bytes()},
            {"types", findings.by_type()},         {"tensors", Json::array()},
            {"batch_norms", Json::array()},        {"sound", findings.sound()}};
  for (const TensorFacts& tensor : findings.tensors) json["tensors"].push_back(to_json(tensor));
  for (const BatchNormHealth& layer : findings.batch_norms)
    json["batch_norms"].push_back(to_json(layer));
  return json;
}

void print_state(const Inspected& inspected) {
  if (inspected.state.empty()) return;
  const std::string name = inspected.state.filename().string();
  if (!inspected.state_problem.empty()) {
    fmt::print("training state  {}: {}\n", name, inspected.state_problem);
    return;
  }
  const Metadata& state = inspected.state_metadata;
  fmt::print("training state  {}: step {}, configuration {}, devices {}, optimizer {}\n", name,
             entry(state, "lockstep.iteration"), entry(state, "config_hash"),
             entry(state, "devices"), entry(state, "optimizer"));
}

void print_head(const Inspected& inspected, const Findings& findings) {
  std::string types;
  for (const auto& [type, count] : findings.by_type())
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", count, type);
  fmt::print("{}\n", inspected.path.string());
  fmt::print("format          {}\n", inspected.format);
  fmt::print("tensors         {} ({}), {} elements, {:.2f} MiB\n", findings.tensors.size(), types,
             findings.elements(), static_cast<double>(findings.bytes()) / 1048576);
  fmt::print("hash            {} ({}, over names, types, shapes and bytes)\n", findings.hash,
             kHashName);
  for (const auto& [key, value] : inspected.file.metadata)
    fmt::print("metadata        {} = {}\n", key, value);
  print_state(inspected);
}

void print_tensors(const std::vector<TensorFacts>& tensors) {
  Table table{.header = {"tensor", "type", "shape", "elements", "min", "max", "hash"}, .rows = {}};
  for (const TensorFacts& tensor : tensors) {
    table.rows.push_back({tensor.name, tensor.dtype, shape_text(tensor.shape),
                          std::to_string(tensor.elements), number_text(tensor.min),
                          number_text(tensor.max), tensor.hash});
  }
  fmt::print("\n{}\n", to_markdown(table));
}

void print_batch_norms(const std::vector<BatchNormHealth>& layers) {
  if (layers.empty()) return;
  Table table{.header = {"BatchNorm", "channels", "mean from", "to", "variance from", "to",
                         "batches", "verdict"},
              .rows = {}};
  std::string problems;
  std::size_t ill = 0;
  for (const BatchNormHealth& layer : layers) {
    table.rows.push_back(
        {layer.layer, std::to_string(layer.channels), number_text(layer.mean_min),
         number_text(layer.mean_max), number_text(layer.var_min), number_text(layer.var_max),
         layer.num_batches_tracked ? std::to_string(*layer.num_batches_tracked) : "-",
         layer.problems.empty() ? "sound" : "look"});
    for (const std::string& problem : layer.problems)
      problems += fmt::format("  {}: {}\n", layer.layer, problem);
    ill += layer.problems.empty() ? 0 : 1;
  }
  fmt::print("{}\n", to_markdown(table));
  if (ill == 0) {
    fmt::print("BatchNorm: {} layers, all sound\n", layers.size());
  } else {
    fmt::print("BatchNorm: {} of {} layers to look at\n{}", ill, layers.size(), problems);
  }
}

void print_not_finite(const std::vector<TensorFacts>& tensors) {
  bool any = false;
  for (const TensorFacts& tensor : tensors) {
    if (tensor.nans + tensor.infinities == 0) continue;
    any = true;
    fmt::print("not finite: {} has {} NaN and {} infinite of {} elements\n", tensor.name,
               tensor.nans, tensor.infinities, tensor.elements);
  }
  if (!any) fmt::print("all values are finite\n");
}

void inspect(const InspectArguments& arguments) {
  const Inspected inspected = read(arguments.target, arguments.filter);
  const Findings findings(inspected.file);
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(to_json(inspected, findings), 2));
    return;
  }
  print_head(inspected, findings);
  print_tensors(findings.tensors);
  print_batch_norms(findings.batch_norms);
  print_not_finite(findings.tensors);
}

// --- two files ---

Json to_json(const TensorDifference& tensor) {
  Json json{{"name", tensor.name},
            {"dtypes", {tensor.first_dtype, tensor.second_dtype}},
            {"shapes", {tensor.first_shape, tensor.second_shape}}};
  if (tensor.first_shape != tensor.second_shape) return json;
  json.update({{"elements", tensor.elements},
               {"differing", tensor.differing},
               {"not_finite", tensor.not_finite},
               {"max_absolute", json_or_null(tensor.max_absolute)},
               {"max_relative", json_or_null(tensor.max_relative)},
               {"ulps", json_or_null(tensor.ulps)}});
  return json;
}

Json to_json(const Inspected& first, const Inspected& second, const WeightsDifference& difference) {
  Json json{{"files", {first.path.string(), second.path.string()}},
            {"hash_algorithm", kHashName},
            {"hashes", {tensors_hash(first.file.tensors), tensors_hash(second.file.tensors)}},
            {"equal", difference.none()},
            {"equal_tensors", difference.equal},
            {"only_first", difference.only_first},
            {"only_second", difference.only_second},
            {"changed", Json::array()}};
  for (const TensorDifference& tensor : difference.changed)
    json["changed"].push_back(to_json(tensor));
  return json;
}

void print_only(const fs::path& file, const std::vector<std::string>& names) {
  if (names.empty()) return;
  fmt::print("only in {}:\n", file.string());
  for (const std::string& name : names) fmt::print("  {}\n", name);
}

std::string change_text(const std::string& before, const std::string& after) {
  return before == after ? before : before + " / " + after;
}

void print_changed(const std::vector<TensorDifference>& changed) {
  if (changed.empty()) return;
  Table table{
      .header = {"tensor", "type", "shape", "differ", "max abs", "max rel", "ulps", "not finite"},
      .rows = {}};
  for (const TensorDifference& tensor : changed) {
    const bool compared = tensor.first_shape == tensor.second_shape;
    table.rows.push_back(
        {tensor.name, change_text(tensor.first_dtype, tensor.second_dtype),
         change_text(shape_text(tensor.first_shape), shape_text(tensor.second_shape)),
         compared ? fmt::format("{} of {}", tensor.differing, tensor.elements) : "-",
         number_text(tensor.max_absolute), number_text(tensor.max_relative),
         tensor.ulps ? std::to_string(*tensor.ulps) : "-",
         compared ? std::to_string(tensor.not_finite) : "-"});
  }
  fmt::print("{}\n", to_markdown(table));
}

void print_difference(const Inspected& first, const Inspected& second,
                      const WeightsDifference& difference) {
  print_only(first.path, difference.only_first);
  print_only(second.path, difference.only_second);
  print_changed(difference.changed);
  if (first.file.metadata != second.file.metadata) fmt::print("metadata differs\n");
  if (difference.none()) {
    fmt::print("{} tensors, equal to the byte: hash {} ({})\n", difference.equal,
               tensors_hash(first.file.tensors), kHashName);
    return;
  }
  fmt::print("different: {} tensors are equal to the byte, {} are not, {} are in one file only\n",
             difference.equal, difference.changed.size(),
             difference.only_first.size() + difference.only_second.size());
}

int compare(const InspectArguments& arguments) {
  const Inspected first = read(arguments.target, arguments.filter);
  const Inspected second = read(arguments.other, arguments.filter);
  const WeightsDifference difference = difference_of(first.file.tensors, second.file.tensors);
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(to_json(first, second, difference), 2));
  } else {
    print_difference(first, second, difference);
  }
  return difference.none() ? kExitDone : kExitFailure;
}

void declare_inspect(Options& options, InspectArguments& arguments) {
  options
      .add("TARGET", arguments.target,
           "run folder (its last checkpoint), checkpoint, safetensors or PyTorch's .pth")
      .takes("RUN|FILE")
      .required();
  options
      .add("OTHER", arguments.other,
           "another: only what differs is shown; exit code 0: equal, 1: different")
      .takes("RUN|FILE");
  options
      .add("--filter", arguments.filter, "only tensors whose names match, such as '*.running_var'")
      .takes("GLOB");
  options.add_json();
}

int run_inspect(const InspectArguments& arguments) {
  if (!arguments.other.empty()) return compare(arguments);
  inspect(arguments);
  return kExitDone;
}

}  // namespace

Command inspect_command() {
  return {
      .name = "inspect",
      .says = "What a file of weights holds and whether it is sound, or how two files differ",
      .page = "inspect",
      .examples = {{"lockstep inspect runs/first --filter '*.running_var'",
                    "tensors of the last checkpoint, and whether its BatchNorm layers are sound"},
                   {"lockstep inspect runs/first runs/first/ckpt/last.safetensors",
                    "where two files of weights differ: exit code 0 where they do not"}},
      .declare = declares(declare_inspect, run_inspect)};
}

}  // namespace lockstep
