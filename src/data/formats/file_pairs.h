#pragma once
// Which image belongs to which mask: the directory layouts. To add a layout, add a function that
// returns its pairs in a fixed order. All throw DataError.

#include <filesystem>
#include <string>
#include <vector>

#include "data/formats/known_files.h"

namespace lockstep {

struct FilePair {
  std::string image, mask;
};

/// Whether the name ends in one of these extensions (".png"), in small letters or capitals.
bool has_extension(const std::filesystem::path& file, const std::vector<std::string>& extensions);

/// Throws DataError that says which folders there are when this one does not exist.
void check_split_folder(const std::filesystem::path& folder);

/// Throws ConfigError when it is not set, DataError when it is not a folder.
void check_root(const std::filesystem::path& root);

/// A line of a text file that names files: its words are separated by tabs where it has one, else
/// by spaces.
struct ListLine {
  int number = 0;  // of the line, from 1
  std::vector<std::string> words;
};

/// The lines that are not empty. Throws when the file is not there or holds none.
std::vector<ListLine> read_list(const std::filesystem::path& list);

/// "image mask". Paths that were written on another machine are found by their longest tail that
/// is a file below `root`.
FilePair pair_of_line(const std::filesystem::path& root, const std::filesystem::path& list,
                      const ListLine& line, KnownFiles& known);

/// Images (.jpg, .jpeg, .png) and masks (.png) of two folders by file stem, in the order of stems.
std::vector<FilePair> pair_by_stem(const std::filesystem::path& images,
                                   const std::filesystem::path& masks);

/// images/<split>/*.{jpg,jpeg,png} and masks/<split>/*.png by file stem, in the order of the stems.
std::vector<FilePair> folder_pairs(const std::filesystem::path& root, const std::string& split);

/// <split>, or else <split>.txt: lines "image mask", paths relative to `root`, in their order.
std::vector<FilePair> list_pairs(const std::filesystem::path& root, const std::string& split);

/// The SegNet tutorial's layout: <split>.txt with lines "image mask", in its order, or else
/// <split>/*.png and <split>annot/*.png by file stem.
std::vector<FilePair> camvid_pairs(const std::filesystem::path& root, const std::string& split);

}  // namespace lockstep
