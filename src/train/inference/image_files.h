#pragma once
// Which images a prediction is of, and which files it writes.

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// Files as they are given, and of folders those of the formats that are read (hidden ones left
/// out), sorted. One that is named several times is there once. Throws DataError for what is not
/// there and for a folder without images. `left_out` gets a sentence on images that lie in such a
/// folder and are not taken. Of images in several files (data.channel_files) a folder's first files
/// count.
std::vector<std::filesystem::path> find_images(std::span<const std::filesystem::path> inputs,
                                               const std::vector<std::string>& channel_files,
                                               std::vector<std::string>& left_out);

/// What belongs into the folder of a prediction beside its images' names.
struct PredictionKinds {
  bool map = true, overlay = true, probabilities = false;
  bool tiff = true;           // maps of TIFF are TIFF, else PNG
  std::string left_off = {};  // the end of an image's stem that those of its files lack
};

/// What is written for an image; empty where it is not.
struct PredictionFiles {
  std::filesystem::path map, overlay, probabilities;

  /// Returns the files that are written.
  std::vector<std::filesystem::path> all() const;
};

/// Whether the map of the image is a TIFF, too.
bool has_tiff_map(const std::filesystem::path& image, const PredictionKinds& kinds);

/// The files in `folder` for each image: STEM.png, or STEM.tif of a TIFF, STEM_overlay.png and
/// STEM.npy. Throws ConfigError when two images would have a file in common, or a file is one of
/// the images itself.
std::vector<PredictionFiles> prediction_files(std::span<const std::filesystem::path> images,
                                              const std::filesystem::path& folder,
                                              const PredictionKinds& kinds);

/// Throws ConfigError when one of the files is there already, naming the first.
void check_absent(std::span<const std::filesystem::path> files);

/// Makes the folder where it is not there. Throws ConfigError when it cannot be made or written to.
void make_output_folder(const std::filesystem::path& folder);

}  // namespace lockstep
