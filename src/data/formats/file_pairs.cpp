#include "data/formats/file_pairs.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>

#include "core/utf8.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Extensions = std::vector<std::string>;
using FilesByStem = std::map<std::string, fs::path>;

// "has the folders: test train val", so that a misspelt split explains itself.
std::string contents_of(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    const fs::path parent = directory.parent_path();
    const bool more = !parent.empty() && parent != directory;
    return concat(" (", directory.string(), " does not exist)", more ? contents_of(parent) : "");
  }
  std::vector<std::string> names;
  std::int64_t images = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (is_hidden(entry.path())) continue;
    if (entry.is_directory()) {
      names.push_back(entry.path().filename().string());
    } else if (has_extension(entry.path(), image_extensions())) {
      ++images;
    }
  }
  std::sort(names.begin(), names.end());
  std::string text =
      concat(" (", directory.string(), names.empty() ? " has no folders" : " has the folders:");
  for (const std::string& name : names) text += " " + name;
  if (images == 0) return text + ")";
  return concat(text, names.empty() ? ", but " : ", and ", images, " images",
                "; one folder is divided by data.val_share = 0.2, say)");
}

// "but a.tif", so that images in a format that is not read explain themselves.
std::string other_files(const fs::path& directory) {
  std::string first;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() || is_hidden(entry.path())) continue;
    if (count++ == 0 || name < first) first = name;
  }
  if (count == 0) return "";
  const std::string more = count == 1 ? "" : concat(" and ", count - 1, " more");
  return concat(" of them, but ", first, more, "; other formats must be converted");
}

/// The files of a folder by what pairs them: the stem without `suffix`, with the folders below
/// where these count.
class FolderListing {
 public:
  /// `known`: ends of names, of files with another suffix, that are left out without a word.
  FolderListing(const fs::path& folder, Extensions extensions, std::string suffix, Extensions known,
                bool subfolders)
      : folder_(folder),
        extensions_(std::move(extensions)),
        suffix_(std::move(suffix)),
        known_(std::move(known)),
        subfolders_(subfolders),
        work_("listing " + folder.string(), "files", 0) {
    check_split_folder(folder);
    list(folder, "");
    if (files_.empty()) throw_empty();
  }

  const FilesByStem& files() const { return files_; }
  std::vector<std::string> left_out() const { return left_out_.sentences(folder_, kRemedy); }

 private:
  static constexpr const char* kRemedy = "data.subfolders = true reads them";

  void list(const fs::path& folder, const std::string& below) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const fs::path& path = entry.path();
      work_.advance();
      if (is_hidden(path)) continue;
      if (!entry.is_directory()) {
        is_no_file(entry) ? left_out_.add_file(path) : add(path, below);
      } else if (subfolders_) {
        list(path, below + path.filename().string() + "/");
      } else {
        left_out_.add_folder(path);
      }
    }
  }
  void add(const fs::path& path, const std::string& below) {
    if (!has_extension(path, extensions_)) return left_out_.add_file(path);
    std::string stem = path.stem().string();
    if (!stem.ends_with(suffix_)) return left_out_.add_file(path, known_);
    stem.resize(stem.size() - suffix_.size());
    const auto [other, added] = files_.emplace(below + stem, path);
    if (added) return;
    throw DataError(concat("two files of the same stem: ", other->second.string(), " and ",
                           path.string(), "; keep one of them"));
  }
  [[noreturn]] void throw_empty() const {
    const std::string text =
        concat(folder_.string(), ": expected files ", wildcards(extensions_, suffix_),
               ", found none", other_files(folder_));
    if (left_out_.folders.empty()) throw LayoutError(text);
    throw LayoutError(
        concat(text, ", but ", left_out_.of_folders(), " in folders below it; ", kRemedy));
  }

  fs::path folder_;
  Extensions extensions_;
  std::string suffix_;
  Extensions known_;
  bool subfolders_;
  FilesByStem files_;
  LeftOut left_out_;
  LongWork work_;
};

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

// "; data.mask_suffix = "_mask" pairs them", or nothing.
std::string suffix_hint(const FilesByStem& images, const FilesByStem& masks) {
  const std::string& stem = images.begin()->first;
  for (auto mask = masks.lower_bound(stem); mask != masks.end(); ++mask) {
    if (!mask->first.starts_with(stem)) break;
    const std::string suffix = mask->first.substr(stem.size());
    const bool all = std::all_of(images.begin(), images.end(), [&](const auto& image) {
      return masks.contains(image.first + suffix);
    });
    if (all) return concat("; data.mask_suffix = \"", suffix, "\" pairs them");
  }
  return "";
}

/// Whether a name has accents that are characters of their own, U+0300 to U+036F.
bool has_loose_accents(const FilesByStem& files) {
  return std::any_of(files.begin(), files.end(), [](const auto& file) {
    return file.first.find_first_of("\xCC\xCD") != std::string::npos;
  });
}

std::string accents_hint(const FilesByStem& images, const FilesByStem& masks) {
  if (has_loose_accents(images) == has_loose_accents(masks)) return "";
  return "; letters with accents are written in two ways (NFC and NFD), which look alike: convmv "
         "-r -f utf8 -t utf8 --nfc --notest makes one of them";
}

FoundPairs pairs_of_list(const fs::path& root, const fs::path& list) {
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
  return {std::move(pairs), {}};
}

// Of one folder that is divided by data.val_share the splits need no folders.
fs::path folder_of_split(const fs::path& folder, const std::string& split, const PairRule& rule) {
  return rule.one_folder && !fs::is_directory(folder / split) ? folder : folder / split;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\v\f";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// What stands in quotes is a part of its word, and "" in them is a quote: as spreadsheets write.
std::vector<std::string> split_words(const std::string& line, char separator) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  const auto finish = [&] {
    word = trimmed(word);
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && line.substr(i + 1, 1) == "\"") {
      word += line[i++];
    } else if (line[i] == '"' && (quoted || trimmed(word).empty())) {
      quoted = !quoted;
    } else if (line[i] == separator && !quoted) {
      finish();
    } else {
      word += line[i];
    }
  }
  if (quoted) throw DataError("a quotation mark that begins a name has no partner");
  finish();
  return words;
}

std::vector<std::string> words_of(const std::string& line) {
  if (line.find('\t') != std::string::npos) return split_words(line, '\t');
  std::vector<std::string> words = split_words(line, ' ');
  for (const char separator : {',', ';'}) {  // a table of two columns
    if (words.size() == 2 && !words[0].ends_with(separator)) continue;
    std::vector<std::string> cells = split_words(line, separator);
    if (cells.size() == 2) return cells;
  }
  return words;
}

std::string text_of_list(const fs::path& list) {
  try {
    return plain_text(text_of_file(list));
  } catch (const DataError& error) {
    throw DataError(concat(list.string(), ": expected a list of files; ", error.what()));
  }
}

// What Windows writes as images\a.png.
std::string with_slashes(std::string path) {
  std::replace(path.begin(), path.end(), '\\', '/');
  return path;
}

}  // namespace

bool is_no_file(const fs::directory_entry& entry) {
  return !entry.is_regular_file() && entry.is_other();  // the first is known without asking
}

DataError unreadable(const fs::filesystem_error& error) {
  return DataError(concat(error.path1().string(), ": cannot be read: ", error.code().message()));
}

bool is_hidden(const fs::path& file) { return file.filename().string().starts_with('.'); }

const std::vector<std::string>& image_extensions() {
  static const std::vector<std::string> extensions{".jpg", ".jpeg", ".png",
                                                   ".tif", ".tiff", ".npy"};
  return extensions;
}

const std::vector<std::string>& mask_extensions() {
  static const std::vector<std::string> extensions{".png", ".tif", ".tiff", ".npy"};
  return extensions;
}

std::string wildcards(const std::vector<std::string>& extensions, const std::string& suffix) {
  std::string text;
  for (const std::string& extension : extensions)
    text += concat(text.empty() ? "*" : " *", suffix, extension);
  return text;
}

bool begins_an_image(const fs::path& file, const std::vector<std::string>& channel_files) {
  return channel_files.empty() || file.stem().string().ends_with(channel_files.front());
}

void LeftOut::add_file(const fs::path& file, const std::vector<std::string>& known) {
  static const Extensions others{".bmp",  ".gif",  ".jp2",  ".pgm",  ".pnm", ".ppm",
                                 ".webp", ".heic", ".avif", ".jfif", ".czi", ".nd2",
                                 ".svs",  ".ndpi", ".dcm",  ".nii",  ".lif"};
  const std::string stem = file.stem().string();
  const auto ends_so = [&](const std::string& end) { return stem.ends_with(end); };
  if (is_hidden(file) || std::any_of(known.begin(), known.end(), ends_so)) return;
  if (has_extension(file, image_extensions()) || has_extension(file, others)) {
    files.push_back(file.filename().string());
  }
}

void LeftOut::add_folder(const fs::path& folder) {
  std::error_code unreadable;
  std::int64_t images = 0;
  for (auto entry = fs::recursive_directory_iterator(folder, unreadable);
       !unreadable && entry != fs::end(entry); entry.increment(unreadable)) {
    const bool hidden = is_hidden(entry->path());
    if (hidden) entry.disable_recursion_pending();
    if (has_extension(entry->path(), image_extensions()) && !hidden) ++images;
  }
  if (images > 0) folders[folder.filename().string()] += images;
}

std::string LeftOut::of_folders() const {
  std::int64_t images = 0;
  for (const auto& [name, count] : folders) images += count;
  const std::string more = folders.size() == 1 ? "" : concat(" and ", folders.size() - 1, " more");
  return concat(images, images == 1 ? " image" : " images", " (", folders.begin()->first, more,
                ")");
}

std::vector<std::string> LeftOut::sentences(const fs::path& folder,
                                            const std::string& remedy) const {
  std::vector<std::string> texts;
  if (!files.empty()) {
    const std::string first = *std::min_element(files.begin(), files.end());
    const std::string more = files.size() == 1 ? "" : concat(" and ", files.size() - 1, " more");
    texts.push_back(concat(folder.string(),
                           ": left out, by format, name or place no file of the layout: ", first,
                           more, "; convert to PNG what belongs to the data set"));
  }
  if (!folders.empty()) {
    texts.push_back(concat(folder.string(), ": left out, in folders below it: ", of_folders(),
                           remedy.empty() ? "" : "; " + remedy));
  }
  return texts;
}

void check_root(const fs::path& root) {
  if (root.empty()) throw ConfigError("data.root is not set: expected the data set's folder");
  std::error_code ignored;
  if (fs::is_directory(root, ignored)) return;
  const fs::path looked_for = fs::absolute(root, ignored);
  const bool variable = root.string().find('$') != std::string::npos;
  throw DataError(concat("data.root = \"", root.string(), "\" is not a folder",
                         root == looked_for ? "" : concat("; looked for ", looked_for.string()),
                         variable ? "; variables of the shell, $, are not replaced here" : ""));
}

void check_split_folder(const fs::path& folder) {
  if (fs::is_directory(folder)) return;
  throw LayoutError(concat("expected the folder ", folder.string(), "; it does not exist",
                           contents_of(folder.parent_path()),
                           ". Check data.root and the split's name"));
}

bool has_extension(const fs::path& file, const std::vector<std::string>& extensions) {
  std::string extension = file.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

std::vector<ListLine> read_list(const fs::path& list) {
  std::istringstream file(text_of_list(list));
  std::vector<ListLine> lines;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    try {
      std::vector<std::string> words = words_of(trimmed(text));
      if (!words.empty()) lines.push_back({number, std::move(words)});
    } catch (const DataError& error) {
      throw DataError(concat(list.string(), ":", number, ": ", error.what()));
    }
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
    auto found = resolve(root, *word, known);
    if (!found) found = resolve(root, with_slashes(*word), known);
    if (!found) {
      throw DataError(concat(where(), ": no tail of ", *word, " is a file under ", root.string(),
                             is_utf8(*word) ? "" : "; the line is not UTF-8: save the list so"));
    }
    *file = *found;
  }
  return pair;
}

FoundPairs pair_by_stem(const fs::path& image_directory, const fs::path& mask_directory,
                        const PairRule& rule) {
  const std::string first = rule.channel_files.empty() ? "" : rule.channel_files.front();
  const Extensions any{""};  // beside masks lie pictures of them
  const FolderListing all_images(image_directory, image_extensions(), first, rule.channel_files,
                                 rule.subfolders);
  const FolderListing all_masks(mask_directory, mask_extensions(), rule.mask_suffix, any,
                                rule.subfolders);
  const FilesByStem &images = all_images.files(), &masks = all_masks.files();
  if (const std::string names = missing_in(images, masks); !names.empty()) {
    throw DataError(concat("images without a mask of the same stem in ", mask_directory.string(),
                           ": ", names, rule.mask_suffix.empty() ? suffix_hint(images, masks) : "",
                           accents_hint(images, masks)));
  }
  if (const std::string names = missing_in(masks, images); !names.empty()) {
    throw DataError(concat("masks without an image of the same stem in ", image_directory.string(),
                           ": ", names));
  }
  FoundPairs found{.pairs = {}, .left_out = all_images.left_out()};
  for (const auto& [stem, path] : images) found.pairs.push_back({path, masks.at(stem)});
  for (std::string& text : all_masks.left_out()) found.left_out.push_back(std::move(text));
  return found;
}

FoundPairs list_pairs(const fs::path& root, const std::string& split) {
  check_root(root);
  const fs::path list = root / split;
  return pairs_of_list(root, fs::is_regular_file(list) ? list : fs::path(list).concat(".txt"));
}

FoundPairs folder_pairs(const fs::path& root, const std::string& split, const PairRule& rule) {
  check_root(root);
  return pair_by_stem(folder_of_split(root / "images", split, rule),
                      folder_of_split(root / "masks", split, rule), rule);
}

FoundPairs camvid_pairs(const fs::path& root, const std::string& split, const PairRule& rule) {
  check_root(root);
  const fs::path list = root / (split + ".txt");
  if (fs::is_regular_file(list)) return pairs_of_list(root, list);
  return pair_by_stem(root / split, root / (split + "annot"), rule);
}

}  // namespace lockstep
