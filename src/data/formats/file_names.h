#pragma once
// The paths of a data set's files: a million of them take little more memory than their letters.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// Names keep their order. Safe from several threads once all are there.
class FileNames {
 public:
  /// `folder`: what most of them begin with; it is kept once.
  explicit FileNames(std::string folder = "") : folder_(std::move(folder)) {}

  void add(std::string_view path);
  std::size_t size() const { return places_.size(); }
  /// REQUIRES: index < size().
  std::string operator[](std::size_t index) const;

 private:
  /// Where a name is: kBelow or kWhole, its letters and a 0.
  struct Place {
    std::uint32_t block = 0, begin = 0;
  };

  std::string folder_;
  std::vector<std::string> blocks_;  // they never grow: no letter is copied
  std::vector<Place> places_;
};

/// The folders that both paths begin with, "/" at their end; empty where there is none.
std::string common_folder(std::string_view a, std::string_view b);

}  // namespace lockstep
