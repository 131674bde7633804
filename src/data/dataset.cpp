#include "lockstep/data/dataset.h"

#include <algorithm>

#include "data/file_dataset.h"
#include "data/streets.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// CamVid's value for what belongs to no class.
constexpr int kCamvidVoid = 11;

const std::vector<std::string>& street_class_names() {
  static const std::vector<std::string> names = {"sky",      "building",   "pole",        "road",
                                                 "pavement", "tree",       "sign_symbol", "fence",
                                                 "car",      "pedestrian", "bicyclist"};
  return names;
}

bool has_street_classes(const DataOptions& options) {
  return options.layout != DataLayout::kFolder &&
         class_count(options) == static_cast<int>(street_class_names().size());
}

LabelRule label_rule(const DataOptions& options) {
  LabelRule rule{class_count(options), options.ignore_index, -1};
  if (rule.num_classes > 256) {
    throw ConfigError(
        concat("data.num_classes = ", rule.num_classes, ": labels have 8 bits, so at most 256"));
  }
  if (rule.ignore_index < 0 || rule.ignore_index > 255) {
    throw ConfigError(concat("data.ignore_index = ", rule.ignore_index, ": expected 0..255"));
  }
  if (options.layout == DataLayout::kCamvid && has_street_classes(options))
    rule.void_value = kCamvidVoid;
  return rule;
}

}  // namespace

Sample Dataset::load(std::int64_t index) const {
  Sample sample;
  load(index, sample);
  return sample;
}

std::unique_ptr<Dataset> make_dataset(const DataOptions& options, Split split, std::uint64_t seed) {
  const LabelRule rule = label_rule(options);
  const std::string& name = split == Split::kTrain ? options.train : options.val;
  switch (options.layout) {
    case DataLayout::kFolder:
      return std::make_unique<FileDataset>(folder_pairs(options.root, name), rule);
    case DataLayout::kCamvid:
      return std::make_unique<FileDataset>(camvid_pairs(options.root, name), rule);
    case DataLayout::kStreets:
      return make_streets(options, split, seed);
  }
  throw ConfigError("unknown data layout");
}

int class_count(const DataOptions& options) {
  if (options.num_classes > 0) return options.num_classes;
  if (options.num_classes < 0 || options.layout == DataLayout::kFolder) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes,
                             ": expected the number of classes, ", "ignored values left out"));
  }
  return static_cast<int>(street_class_names().size());
}

std::vector<std::string> class_names(const DataOptions& options) {
  const int count = class_count(options);
  if (!options.classes.empty()) {
    if (static_cast<int>(options.classes.size()) != count) {
      throw ConfigError(concat("data.classes has ", options.classes.size(),
                               " names, but data.num_classes = ", count));
    }
    return options.classes;
  }
  if (has_street_classes(options)) return street_class_names();
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(concat("class_", i));
  return names;
}

}  // namespace lockstep
