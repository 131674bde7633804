#pragma once
// What a data set holds: the names and contents of its samples' files. The same files under another
// path are the same data.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// Of both splits, which outlive it. Used by one thread.
class Fingerprint {
 public:
  /// Reads all files on `options.workers` threads beside the caller's; of many files, those that
  /// have changed since they were read last (by size and times, in the user's cache). What cannot
  /// be read is left to who loads it.
  Fingerprint(const Dataset& train, const Dataset& val, const DataOptions& options);

  /// 16 hex digits; empty: the samples are in no files.
  const std::string& hash() const { return hash_; }
  std::int64_t files() const { return static_cast<std::int64_t>(contents_.size()); }

  /// Writes a line for each file: hash, split and name, with tabs between. Nothing where there are
  /// no files, or so many that the list would be no run's. Throws Error.
  void write(const std::filesystem::path& list) const;
  /// What has changed since `write` wrote the list: "3 files changed (a.png, b.png, c.png), 1 added
  /// (d.png)".
  std::string changes_since(const std::filesystem::path& list) const;

 private:
  struct Entry {
    Split split = Split::kTrain;
    std::int64_t sample = 0;
    std::size_t first = 0;  // of its files among the contents
  };
  void add_entries(const Dataset& dataset, Split split);
  void read_contents(int workers);
  std::vector<std::string> files_of(const Entry& entry) const;
  void make_hash();
  std::string name_of(const std::string& file) const;
  template <typename Visit>
  void for_each_file(const Visit& visit) const;

  const Dataset& train_;
  const Dataset& val_;
  std::string root_;
  std::vector<Entry> entries_;  // of samples whose files are not those of the sample before
  std::vector<std::uint64_t> contents_;  // of all files, by their hashes
  std::string hash_;
};

}  // namespace lockstep
