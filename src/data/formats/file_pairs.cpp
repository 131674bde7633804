#include "data/formats/file_pairs.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>

#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

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

// "but a.tif", so that images in a format that is not read explain themselves.
std::string other_files(const fs::path& directory) {
  std::string first;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() || name.starts_with('.')) continue;
    if (count++ == 0 || name < first) first = name;
  }
  if (count == 0) return "";
  const std::string more = count == 1 ? "" : concat(" and ", count - 1, " more");
  return concat(" of them, but ", first, more, "; other formats must be converted");
}

FilesByStem list_files(const fs::path& directory, const Extensions& extensions) {
  check_split_folder(directory);
  FilesByStem files;
  LongWork work("listing " + directory.string(), "files", 0);
  for (const auto& entry : fs::directory_iterator(directory)) {
    const fs::path& path = entry.path();
    work.advance();
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
    throw DataError(text + ", found none" + other_files(directory));
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

// A list was written on another machine: the longest tail of its path that exists under `root` is
// the file.
std::optional<std::string> resolve(const fs::path& root, const std::string& word,
                                   KnownFiles& known) {
  std::error_code no_file;  // a name that is too long, say
  std::string below = root.string() + "/" + word;
  if (!word.starts_with('/') && known.has(below)) return below;
  const fs::path listed = word;
  const fs::path relative = listed.relative_path();
  constexpr std::ptrdiff_t kDeepest = 64;  // all tails of a path take as long as its square
  if (std::distance(relative.begin(), relative.end()) > kDeepest) return std::nullopt;
  for (auto first = relative.begin(); first != relative.end(); ++first) {
    fs::path candidate = root;
    for (auto part = first; part != relative.end(); ++part) candidate /= *part;
    if (fs::is_regular_file(candidate, no_file)) return candidate.string();
  }
  return std::nullopt;
}

std::vector<FilePair> pairs_of_list(const fs::path& root, const fs::path& list) {
  std::vector<FilePair> pairs;
  std::vector<ListLine> lines = read_list(list);
  pairs.reserve(lines.size());
  KnownFiles known;
  LongWork work("looking for the files of " + list.string(), "lines",
                static_cast<std::int64_t>(lines.size()));
  for (ListLine& line : lines) {
    pairs.push_back(pair_of_line(root, list, line, known));
    line = {};  // of a million lines both would be too much
    work.advance();
  }
  return pairs;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  std::string word;
  const bool tabs = line.find('\t') != std::string::npos;
  while (tabs ? static_cast<bool>(std::getline(stream, word, '\t'))
              : static_cast<bool>(stream >> word)) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

}  // namespace

void check_root(const fs::path& root) {
  if (root.empty()) throw ConfigError("data.root is not set: expected the data set's folder");
  if (!fs::is_directory(root)) {
    throw DataError(concat("data.root = \"", root.string(), "\" is not a folder"));
  }
}

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

std::vector<ListLine> read_list(const fs::path& list) {
  std::ifstream file(list);
  if (!file) throw DataError(concat(list.string(), ": expected a list of files; cannot be read"));
  std::vector<ListLine> lines;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    if (text.ends_with('\r')) text.pop_back();
    std::vector<std::string> words = words_of(text);
    if (!words.empty()) lines.push_back({number, std::move(words)});
  }
  if (lines.empty()) throw DataError(concat(list.string(), ": expected lines, found none"));
  return lines;
}

FilePair pair_of_line(const fs::path& root, const fs::path& list, const ListLine& line,
                      KnownFiles& known) {
  const auto where = [&] { return concat(list.string(), ":", line.number); };
  if (line.words.size() != 2) {
    throw DataError(
        concat(where(), ": expected \"image mask\", separated by a tab where names have ",
               "spaces, got ", line.words.size(), " words, the first \"", line.words[0], "\""));
  }
  FilePair pair;
  for (const auto& [word, file] :
       {std::pair{&line.words[0], &pair.image}, std::pair{&line.words[1], &pair.mask}}) {
    const auto found = resolve(root, *word, known);
    if (!found) {
      throw DataError(concat(where(), ": no tail of ", *word, " is a file under ", root.string()));
    }
    *file = *found;
  }
  return pair;
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

std::vector<FilePair> list_pairs(const fs::path& root, const std::string& split) {
  check_root(root);
  const fs::path list = root / split;
  return pairs_of_list(root, fs::is_regular_file(list) ? list : fs::path(list).concat(".txt"));
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
