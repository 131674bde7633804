#pragma once
// Which image belongs to which mask: the directory layouts. To add a layout, add a function that
// returns its pairs in a fixed order. All throw DataError.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/formats/known_files.h"
#include "lockstep/core/check.h"

namespace lockstep {

struct FilePair {
  std::string image, mask;
};

/// The pairs of a split, and what lies beside them: a sentence each.
struct FoundPairs {
  std::vector<FilePair> pairs;
  std::vector<std::string> left_out = {};
};

/// How the files of two folders form pairs.
struct PairRule {
  std::string mask_suffix = {};                 // a mask's stem is its image's and this
  bool subfolders = false;                      // files in folders below count, and paths are names
  bool one_folder = false;                      // data.val_share divides it: splits have no folders
  std::vector<std::string> channel_files = {};  // of an image: its stem is without the first end
};

/// Folders or files are not laid out as the layout has them.
class LayoutError : public DataError {
 public:
  using DataError::DataError;
};

/// Images that a layout does not take, though they lie in its folders: one rule for all layouts.
struct LeftOut {
  std::vector<std::string> files;               // names, of other formats, names or places
  std::map<std::string, std::int64_t> folders;  // images in a folder below and those below it

  /// Counts a file that was not taken, where it is an image whose name ends in none of `known`: a
  /// part of one that is taken, say.
  void add_file(const std::filesystem::path& file, const std::vector<std::string>& known = {});
  /// Counts the images of a folder that was not entered.
  void add_folder(const std::filesystem::path& folder);
  /// "3 images (night and 1 more)". REQUIRES: there are folders.
  std::string of_folders() const;
  /// One for each kind. `remedy`: what reads folders below; empty: nothing does.
  std::vector<std::string> sentences(const std::filesystem::path& folder,
                                     const std::string& remedy) const;
};

/// What keeps a folder or a file from being read: it may not be entered, or is a loop of links.
DataError unreadable(const std::filesystem::filesystem_error& error);

/// Whether it is a pipe, a socket or a device: to open it may take for ever.
bool is_no_file(const std::filesystem::directory_entry& entry);

/// Whether the name begins with a dot: what systems and programs put beside images.
bool is_hidden(const std::filesystem::path& file);

/// Of the images that are read, and of masks.
const std::vector<std::string>& image_extensions();
const std::vector<std::string>& mask_extensions();

/// "*.jpg *.png".
std::string wildcards(const std::vector<std::string>& extensions, const std::string& suffix = "");

/// Whether the file is the first of those that an image consists of (data.channel_files).
bool begins_an_image(const std::filesystem::path& file,
                     const std::vector<std::string>& channel_files);

/// Whether the name ends in one of these extensions (".png"), in small letters or capitals.
bool has_extension(const std::filesystem::path& file, const std::vector<std::string>& extensions);

/// Throws LayoutError that says which folders there are when this one does not exist.
void check_split_folder(const std::filesystem::path& folder);

/// Throws ConfigError when it is not set, DataError when it is not a folder.
void check_root(const std::filesystem::path& root);

/// A line of a text file that names files: its words are separated by tabs where it has one, else
/// by spaces, or by a comma or semicolon where that gives two. A word may stand in double quotes.
struct ListLine {
  int number = 0;  // of the line, from 1
  std::vector<std::string> words;
};

/// The lines that are not empty, with the ends that any system writes. Throws when the file is not
/// there, is no UTF-8 or ASCII, or holds none.
std::vector<ListLine> read_list(const std::filesystem::path& list);

/// "image mask". Paths that were written on another machine are found by their longest tail that
/// is a file below `root`; those of Windows may have backslashes.
FilePair pair_of_line(const std::filesystem::path& root, const std::filesystem::path& list,
                      const ListLine& line, KnownFiles& known);

/// Images and masks of two folders by file stem, in the order of stems.
FoundPairs pair_by_stem(const std::filesystem::path& images, const std::filesystem::path& masks,
                        const PairRule& rule = {});

/// images/<split> and masks/<split> by file stem, in the order of the stems.
FoundPairs folder_pairs(const std::filesystem::path& root, const std::string& split,
                        const PairRule& rule);

/// <split>, or else <split>.txt: lines "image mask", paths relative to `root`, in their order.
FoundPairs list_pairs(const std::filesystem::path& root, const std::string& split);

/// The SegNet tutorial's layout: <split>.txt with lines "image mask", in its order, or else
/// <split>/*.png and <split>annot/*.png by file stem.
FoundPairs camvid_pairs(const std::filesystem::path& root, const std::string& split,
                        const PairRule& rule = {});

}  // namespace lockstep
