#pragma once
// Which image belongs to which mask: the directory layouts. To add a layout, add a function that
// returns its pairs in a fixed order. All throw DataError.

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

struct FilePair {
  std::filesystem::path image, mask;
};

/// Whether the name ends in one of these extensions (".png"), in small letters or capitals.
bool has_extension(const std::filesystem::path& file, const std::vector<std::string>& extensions);

/// Throws DataError that says which folders there are when this one does not exist.
void check_split_folder(const std::filesystem::path& folder);

/// images/<split>/*.{jpg,jpeg,png} and masks/<split>/*.png by file stem, in the order of the stems.
std::vector<FilePair> folder_pairs(const std::filesystem::path& root, const std::string& split);

/// The SegNet tutorial's layout: <split>.txt with lines "image mask", in its order, or else
/// <split>/*.png and <split>annot/*.png by file stem.
std::vector<FilePair> camvid_pairs(const std::filesystem::path& root, const std::string& split);

}  // namespace lockstep
