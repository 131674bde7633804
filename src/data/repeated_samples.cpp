#include "data/repeated_samples.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

bool same_pixels(const Image& a, const Image& b) {
  const auto same_floats = [](const std::vector<float>& x, const std::vector<float>& y) {
    return std::ranges::equal(std::as_bytes(std::span(x)), std::as_bytes(std::span(y)));
  };
  return a.width == b.width && a.pixels == b.pixels && a.words == b.words &&
         same_floats(a.floats, b.floats);
}

/// Samples by what they are called: a hash and an index each, in their order. Of a million samples
/// it takes little memory.
using Names = std::vector<std::pair<std::size_t, std::int64_t>>;

std::size_t name_hash(const Dataset& dataset, std::int64_t index) {
  return std::hash<std::string>{}(dataset.describe(index));
}

Names sample_names(const Dataset& dataset) {
  Names names;
  names.reserve(static_cast<std::size_t>(dataset.size()));
  for (std::int64_t i = 0; i < dataset.size(); ++i) names.emplace_back(name_hash(dataset, i), i);
  std::sort(names.begin(), names.end());
  return names;
}

Found repeated(const Names& names) {
  Found found;
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i].first == names[i - 1].first) found.add(names[i].second);
  }
  return found;
}

Found shared(const Names& train, const Dataset& val) {
  Found found;
  for (std::int64_t i = 0; i < val.size(); ++i) {
    const std::size_t hash = name_hash(val, i);
    const auto known =
        std::lower_bound(train.begin(), train.end(), std::pair{hash, std::int64_t{}});
    if (known != train.end() && known->first == hash) found.add(i);
  }
  return found;
}

bool are_in_files(const Dataset& dataset) {
  return dataset.size() > 0 && !dataset.files(0).empty();
}

void warn_of_repeated(const Dataset& dataset, const Found& found, const std::string& split,
                      std::vector<std::string>& warnings) {
  if (found.images == 0) return;
  warnings.push_back(concat("data (", split, "): ", found.images,
                            found.images == 1 ? " sample is" : " samples are",
                            " listed before, such as ", dataset.describe(found.first),
                            ", and count twice; leave the repetitions out unless that is meant"));
}

}  // namespace

std::vector<std::string> repetition_warnings(const Dataset& train, const Dataset& val,
                                             const DataOptions& options) {
  std::vector<std::string> warnings;
  if (!are_in_files(train) || !are_in_files(val)) return warnings;
  const Names names = sample_names(train);
  warn_of_repeated(train, repeated(names), options.train, warnings);
  warn_of_repeated(val, repeated(sample_names(val)), options.val, warnings);
  if (const Found found = shared(names, val); found.images > 0) {
    warnings.push_back(concat("data: ", found.images, " validation images are training images, ",
                              "too, such as ", val.describe(found.first),
                              "; the validation flatters"));
  }
  return warnings;
}

std::vector<std::pair<std::int64_t, std::int64_t>> find_duplicates(const Dataset& train,
                                                                   const SplitReport& train_report,
                                                                   const Dataset& val,
                                                                   const SplitReport& val_report) {
  using Hashed = std::pair<std::uint64_t, std::int64_t>;  // the image's hash, its sample
  std::vector<Hashed> known;
  for (std::int64_t i = 0; i < train.size(); ++i) {
    if (train_report.hashes[static_cast<std::size_t>(i)] != 0)
      known.emplace_back(train_report.hashes[static_cast<std::size_t>(i)], i);
  }
  std::sort(known.begin(), known.end());
  std::vector<std::pair<std::int64_t, std::int64_t>> duplicates;
  LongWork work("comparing validation images with training images", "images", val.size());
  for (std::int64_t i = 0; i < val.size(); ++i) {
    work.advance();
    const std::uint64_t hash = val_report.hashes[static_cast<std::size_t>(i)];
    // The first that has it: an image that repeats is told of once.
    const auto match = std::lower_bound(known.begin(), known.end(), Hashed{hash, 0});
    if (hash == 0 || match == known.end() || match->first != hash) continue;
    const Image a = train.load(match->second).image;
    const Image b = val.load(i).image;
    if (same_pixels(a, b)) duplicates.emplace_back(match->second, i);
  }
  std::sort(duplicates.begin(), duplicates.end());
  return duplicates;
}

}  // namespace lockstep
