#include "data/file_pairs.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Extensions = std::vector<std::string>;
using FilesByStem = std::map<std::string, fs::path>;

// "has: test, train, val", so that a misspelt split explains itself.
std::string contents_of(const fs::path& directory) {
  if (!fs::is_directory(directory)) return concat(" (", directory.string(), " does not exist)");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  std::string text = concat(" (", directory.string(), " has the folders:");
  for (const std::string& name : names) text += " " + name;
  return text + ")";
}

FilesByStem list_files(const fs::path& directory, const Extensions& extensions) {
  check_split_folder(directory);
  FilesByStem files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const fs::path& path = entry.path();
    if (!has_extension(path, extensions) || path.filename().string().starts_with('.')) continue;
    const auto [other, added] = files.emplace(path.stem().string(), path);
    if (!added) {
      throw DataError(concat("two files of the same stem: ", other->second.string(), " and ",
                             path.string(), "; keep one of them"));
    }
  }
  if (files.empty()) {
    std::string text = concat(directory.string(), ": expected files");
    for (const std::string& extension : extensions) text += " *" + extension;
    throw DataError(text + ", found none");
  }
  return files;
}

// The stems of `a` that `b` lacks: the first few by name, and how many there are.
std::string missing_in(const FilesByStem& a, const FilesByStem& b) {
  constexpr int kNamed = 3;
  std::string names;
  int count = 0;
  for (const auto& [stem, path] : a) {
    if (b.contains(stem)) continue;
    if (count++ < kNamed) names += (names.empty() ? "" : ", ") + path.string();
  }
  if (count > kNamed) names += concat(", ... (", count, " in all)");
  return names;
}

std::vector<FilePair> pair_by_stem(const fs::path& image_directory,
                                   const fs::path& mask_directory) {
  const FilesByStem images = list_files(image_directory, {".jpg", ".jpeg", ".png"});
  const FilesByStem masks = list_files(mask_directory, {".png"});
  if (const std::string names = missing_in(images, masks); !names.empty()) {
    throw DataError(
        concat("images without a mask of the same stem in ", mask_directory.string(), ": ", names));
  }
  if (const std::string names = missing_in(masks, images); !names.empty()) {
    throw DataError(concat("masks without an image of the same stem in ", image_directory.string(),
                           ": ", names));
  }
  std::vector<FilePair> pairs;
  for (const auto& [stem, path] : images) pairs.push_back({path, masks.at(stem)});
  return pairs;
}

// A list was written on another machine: the longest tail of its path that exists under `root` is
// the file.
std::optional<fs::path> resolve(const fs::path& root, const fs::path& listed) {
  const fs::path relative = listed.relative_path();
  for (auto first = relative.begin(); first != relative.end(); ++first) {
    fs::path candidate = root;
    for (auto part = first; part != relative.end(); ++part) candidate /= *part;
    if (fs::is_regular_file(candidate)) return candidate;
  }
  return std::nullopt;
}

std::vector<FilePair> pairs_of_list(const fs::path& root, const fs::path& list) {
  std::ifstream file(list);
  std::vector<FilePair> pairs;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string image;
    std::string mask;
    if (!(words >> image)) continue;
    if (!(words >> mask)) {
      throw DataError(
          concat(list.string(), ":", number, ": expected \"image mask\", got \"", line, "\""));
    }
    const auto found_image = resolve(root, image);
    const auto found_mask = resolve(root, mask);
    if (!found_image || !found_mask) {
      throw DataError(concat(list.string(), ":", number, ": no tail of ",
                             found_image ? mask : image, " is a file under ", root.string()));
    }
    pairs.push_back({*found_image, *found_mask});
  }
  if (pairs.empty())
    throw DataError(concat(list.string(), ": expected lines \"image mask\", found none"));
  return pairs;
}

void check_root(const fs::path& root) {
  if (root.empty()) throw ConfigError("data.root is not set: expected the data set's folder");
  if (!fs::is_directory(root)) {
    throw DataError(concat("data.root = \"", root.string(), "\" is not a folder"));
  }
}

}  // namespace

void check_split_folder(const fs::path& folder) {
  if (fs::is_directory(folder)) return;
  throw DataError(concat("expected the folder ", folder.string(), "; it does not exist",
                         contents_of(folder.parent_path()),
                         ". Check data.root and the split's name"));
}

bool has_extension(const fs::path& file, const std::vector<std::string>& extensions) {
  std::string extension = file.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

std::vector<FilePair> folder_pairs(const fs::path& root, const std::string& split) {
  check_root(root);
  return pair_by_stem(root / "images" / split, root / "masks" / split);
}

std::vector<FilePair> camvid_pairs(const fs::path& root, const std::string& split) {
  check_root(root);
  const fs::path list = root / (split + ".txt");
  if (fs::is_regular_file(list)) return pairs_of_list(root, list);
  return pair_by_stem(root / split, root / (split + "annot"));
}

}  // namespace lockstep
