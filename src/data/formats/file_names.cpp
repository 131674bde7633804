#include "data/formats/file_names.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20U;  // bytes; a longer name has its own
constexpr char kBelow = '1';                           // the folder stands before the letters
constexpr char kWhole = '0';

}  // namespace

void FileNames::add(std::string_view path) {
  const bool below = !folder_.empty() && path.starts_with(folder_);
  if (below) path.remove_prefix(folder_.size());
  const std::size_t bytes = path.size() + 2;
  if (blocks_.empty() || blocks_.back().size() + bytes > blocks_.back().capacity()) {
    blocks_.emplace_back().reserve(std::max(kBlock, bytes));
  }
  std::string& block = blocks_.back();
  places_.push_back(
      {static_cast<std::uint32_t>(blocks_.size() - 1), static_cast<std::uint32_t>(block.size())});
  block.push_back(below ? kBelow : kWhole);
  block.append(path);
  block.push_back('\0');
}

std::string FileNames::operator[](std::size_t index) const {
  const Place& place = places_[index];
  const char* const name = blocks_[place.block].c_str() + place.begin;
  return *name == kBelow ? folder_ + (name + 1) : std::string(name + 1);
}

std::string common_folder(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const std::string_view common(a.data(), static_cast<std::size_t>(end - a.begin()));
  return std::string(common.substr(0, common.rfind('/') + 1));
}

}  // namespace lockstep
