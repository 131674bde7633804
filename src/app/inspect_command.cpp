// lockstep inspect: what a file of weights holds, and how two of them differ.

#include <fmt/format.h>
#include <fnmatch.h>

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

/// Of the weights' tensors, those that --filter asks for.
CheckpointFiles read(const fs::path& target, const std::string& glob) {
  CheckpointFiles inspected = read_checkpoint_of(target);
  TensorMap& tensors = inspected.weights.tensors;
  const std::string first = tensors.empty() ? "" : ", such as " + tensors.begin()->first;
  if (glob.empty()) return inspected;
  std::erase_if(tensors, [&](const auto& tensor) {
    return fnmatch(glob.c_str(), tensor.first.c_str(), 0) != 0;
  });
  if (!tensors.empty()) return inspected;
  throw ConfigError(fmt::format("--filter {}: expected a pattern that names of {} match{}", glob,
                                inspected.path.string(), first));
}

const char* format_of(const fs::path& path) {
  const WeightFileKind kind = weight_file_kind(path);
  if (kind == WeightFileKind::kZip) return "torch.save (zip)";
  return kind == WeightFileKind::kLegacyPth ? "torch.save (before PyTorch 1.6)" : "safetensors";
}

/// What is wrong with the training state beside a checkpoint: a finding, as the weights are what
/// was asked for. Empty: nothing, or there is none.
std::string state_problem(const CheckpointFiles& inspected) {
  const Metadata& metadata = inspected.weights.metadata;
  const auto kind = metadata.find("lockstep.kind");
  return kind == metadata.end() || kind->second != "weights" ? "" : inspected.problem;
}

Json examined(const CheckpointFiles& inspected) {
  Json json = examine_weights(inspected.weights.tensors);
  json.update({{"file", inspected.path.string()},
               {"format", format_of(inspected.path)},
               {"metadata", inspected.weights.metadata},
               {"sound", json["problems"].empty()}});
  const std::string state = state_problem(inspected);
  json["state_problem"] = state.empty() ? Json(nullptr) : Json(state);
  return json;
}

std::string text_of(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print_table(const Json& tensors, const std::vector<std::string>& keys) {
  if (tensors.empty()) return;
  Table table{.header = keys, .rows = {}};
  for (const Json& tensor : tensors) {
    std::vector<std::string>& row = table.rows.emplace_back();
    for (const std::string& key : keys) row.push_back(text_of(tensor.value(key, Json(nullptr))));
  }
  fmt::print("{}\n", to_markdown(table));
}

void print_examined(const Json& json) {
  std::map<std::string, int> types;
  std::int64_t elements = 0;
  for (const Json& tensor : json["tensors"]) {
    ++types[tensor["dtype"]];
    elements += tensor["elements"].get<std::int64_t>();
  }
  fmt::print("{}\nformat    {}\nhash      {}\ntensors  ", text_of(json["file"]),
             text_of(json["format"]), text_of(json["hash"]));
  for (const auto& [type, count] : types) fmt::print(" {} {},", count, type);
  fmt::print(" {} elements\n", elements);
  for (const auto& [key, value] : json["metadata"].items())
    fmt::print("metadata  {} = {}\n", key, text_of(value));
  fmt::print("\n");
  print_table(json["tensors"], {"name", "dtype", "shape", "min", "max", "hash"});
  if (!json["state_problem"].is_null())
    fmt::print("training state: {}\n", text_of(json["state_problem"]));
  for (const Json& problem : json["problems"]) fmt::print("{}\n", text_of(problem));
  fmt::print("{} BatchNorm layers, {}\n", json["batch_norms"].size(),
             json["sound"] == true ? "all is sound" : "not all is sound");
}

void print_compared(const Json& json) {
  for (const char* side : {"only_first", "only_second"}) {
    const Json& file = json["files"][std::string_view(side) == "only_first" ? 0 : 1];
    for (const Json& name : json[side])
      fmt::print("only in {}: {}\n", text_of(file), text_of(name));
  }
  print_table(json["changed"], {"name", "dtypes", "shapes", "elements", "differing", "max_absolute",
                                "max_relative"});
  if (json["equal_metadata"] == false) fmt::print("metadata differs\n");
  fmt::print("{} tensors are equal to the byte, {} are not, {} are in one file only\n",
             json["equal_tensors"].dump(), json["changed"].size(),
             json["only_first"].size() + json["only_second"].size());
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
  const CheckpointFiles first = read(arguments.target, arguments.filter);
  const bool compares = !arguments.other.empty();
  Json json;
  if (compares) {
    const CheckpointFiles second = read(arguments.other, arguments.filter);
    json = compare_weights(first.weights.tensors, second.weights.tensors);
    json["files"] = {first.path.string(), second.path.string()};
    json["equal_metadata"] = first.weights.metadata == second.weights.metadata;
  } else {
    json = examined(first);
  }
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(json, 2));
  } else {
    compares ? print_compared(json) : print_examined(json);
  }
  return compares && json["equal"] == false ? kExitFailure : kExitDone;
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
