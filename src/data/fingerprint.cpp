#include "data/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "core/for_each_index.h"
#include "data/content_cache.h"
#include "data/formats/file_dataset.h"
#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A list of more would take more room than the rest of a run.
constexpr std::int64_t kMostListed = 200'000;
constexpr std::size_t kNamedFiles = 3;

/// Files of which the same is to be told.
struct Told {
  std::int64_t count = 0;
  std::string names;

  void add(const std::string& name) {
    if (static_cast<std::size_t>(count++) < kNamedFiles) names += (count > 1 ? ", " : "") + name;
  }
  std::string text(const char* what) const {
    const bool all = count <= static_cast<std::int64_t>(kNamedFiles);
    return concat(count, count == 1 ? " file " : " files ", what, " (", names,
                  all ? ")" : ", ...)");
  }
};

std::string joined(const Told& changed, const Told& added, const Told& removed) {
  std::string text;
  for (const auto& [told, what] :
       {std::pair{&changed, "changed"}, {&added, "added"}, {&removed, "removed"}}) {
    if (told->count > 0) text += (text.empty() ? "" : ", ") + told->text(what);
  }
  return text.empty() ? "the same files in another order" : text;
}

/// [split and name] hash, both as they are written; empty where there is no list.
std::unordered_map<std::string, std::string> read_list_of_files(const fs::path& list) {
  std::unordered_map<std::string, std::string> files;
  std::ifstream stream(list);
  for (std::string line; std::getline(stream, line);) {
    if (line.size() > 17) files.emplace(line.substr(17), line.substr(0, 16));
  }
  return files;
}

}  // namespace

Fingerprint::Fingerprint(const Dataset& train, const Dataset& val, const DataOptions& options)
    : train_(train), val_(val), root_((options.root / "").string()) {
  add_entries(train, Split::kTrain);
  add_entries(val, Split::kVal);
  if (contents_.empty()) return;
  read_contents(options.workers);
  make_hash();
}

// Samples of one file of records are one entry.
void Fingerprint::add_entries(const Dataset& dataset, Split split) {
  std::vector<std::string> before;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    std::vector<std::string> files = dataset.files(i);
    if (files.empty() || files == before) continue;
    entries_.push_back({split, i, contents_.size()});
    contents_.resize(contents_.size() + files.size());
    before = std::move(files);
  }
}

std::vector<std::string> Fingerprint::files_of(const Entry& entry) const {
  return (entry.split == Split::kTrain ? train_ : val_).files(entry.sample);
}

// A file of several samples is read once.
void Fingerprint::read_contents(int workers) {
  using Place = std::pair<std::uint64_t, std::size_t>;  // of a path, by its hash, in the contents
  std::vector<Place> places;
  places.reserve(contents_.size());
  for (const Entry& entry : entries_) {
    for (const std::string& file : files_of(entry))
      places.emplace_back(XXH3_64bits(file.data(), file.size()), places.size());
  }
  std::sort(places.begin(), places.end());
  ContentCache cache(root_);
  LongWork work("reading what the data set holds", "files", files());
  for_each_index(files(), workers + 1, [&](std::int64_t index, int) {
    work.advance();
    auto place = places.begin() + index;
    if (index > 0 && std::prev(place)->first == place->first) return;
    const auto next = std::upper_bound(
        entries_.begin(), entries_.end(), place->second,
        [](std::size_t content, const Entry& entry) { return content < entry.first; });
    const Entry& entry = *std::prev(next);
    const std::uint64_t content = cache.hash_of(files_of(entry)[place->second - entry.first]);
    for (const std::uint64_t path = place->first; place != places.end() && place->first == path;
         ++place)
      contents_[place->second] = content;
  });
  cache.save();
}

std::string Fingerprint::name_of(const std::string& file) const {
  std::string name = file.starts_with(root_) ? file.substr(root_.size())
                                             : std::filesystem::path(file).filename().string();
  std::replace(name.begin(), name.end(), '\n', '?');  // it ends a line of the list
  return name;
}

/// visit(split, name, content) for every file, in the order of training.
template <typename Visit>
void Fingerprint::for_each_file(const Visit& visit) const {
  for (const Entry& entry : entries_) {
    const auto files = files_of(entry);
    const std::string_view split = entry.split == Split::kTrain ? "train" : "val";
    for (std::size_t k = 0; k < files.size(); ++k)
      visit(split, name_of(files[k]), contents_[entry.first + k]);
  }
}

void Fingerprint::make_hash() {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for_each_file([&](std::string_view split, const std::string& name, std::uint64_t content) {
    XXH3_64bits_update(state.get(), split.data(), split.size());
    XXH3_64bits_update(state.get(), name.c_str(), name.size() + 1);
    XXH3_64bits_update(state.get(), &content, sizeof(content));
  });
  hash_ = hex(XXH3_64bits_digest(state.get()));
}

void Fingerprint::write(const fs::path& list) const {
  if (contents_.empty() || files() > kMostListed) return;
  std::string text;
  for_each_file([&](std::string_view split, const std::string& name, std::uint64_t content) {
    text += concat(hex(content), '\t', split, '\t', name, '\n');
  });
  write_file_atomically(list, text);
}

std::string Fingerprint::changes_since(const fs::path& list) const {
  auto before = read_list_of_files(list);
  if (before.empty()) return "which files is not known: there is no list of them";
  Told changed, added, removed;
  for_each_file([&](std::string_view split, const std::string& name, std::uint64_t content) {
    const auto found = before.find(concat(split, '\t', name));
    if (found == before.end()) return added.add(name);
    if (found->second != hex(content)) changed.add(name);
    before.erase(found);
  });
  std::vector<std::string> gone;
  for (const auto& [name, hash] : before) gone.push_back(name.substr(name.find('\t') + 1));
  std::sort(gone.begin(), gone.end());
  for (const std::string& name : gone) removed.add(name);
  return joined(changed, added, removed);
}

}  // namespace lockstep
