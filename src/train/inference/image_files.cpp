#include "train/inference/image_files.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "data/formats/file_pairs.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> images_in(const fs::path& folder,
                                const std::vector<std::string>& channel_files,
                                std::vector<std::string>& left_out) {
  std::vector<fs::path> images;
  LeftOut others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path& path = entry.path();
    if (is_hidden(path)) continue;
    if (entry.is_directory()) {
      others.add_folder(path);
    } else if (has_extension(path, image_extensions()) && entry.is_regular_file() &&
               begins_an_image(path, channel_files)) {
      images.push_back(path);
    } else {
      others.add_file(path, channel_files);
    }
  }
  for (std::string& text : others.sentences(folder, "name these folders, too"))
    left_out.push_back(std::move(text));
  if (images.empty()) {
    throw DataError(concat(folder.string(), ": expected files ", wildcards(image_extensions()),
                           " in this folder (those in folders below it do not count), found ",
                           "none"));
  }
  std::sort(images.begin(), images.end());
  return images;
}

PredictionFiles files_of(const fs::path& image, const fs::path& folder,
                         const PredictionKinds& kinds) {
  std::string stem = image.stem().string();
  if (stem.ends_with(kinds.left_off)) stem.resize(stem.size() - kinds.left_off.size());
  PredictionFiles files;
  if (kinds.map) files.map = folder / (stem + (has_tiff_map(image, kinds) ? ".tif" : ".png"));
  if (kinds.overlay) files.overlay = folder / (stem + "_overlay.png");
  if (kinds.probabilities) files.probabilities = folder / (stem + ".npy");
  return files;
}

}  // namespace

std::vector<fs::path> find_images(std::span<const fs::path> inputs,
                                  const std::vector<std::string>& channel_files,
                                  std::vector<std::string>& left_out) try {
  std::vector<fs::path> images;
  std::set<fs::path> known;
  const auto add = [&](const fs::path& image) {
    if (known.insert(fs::weakly_canonical(image)).second) images.push_back(image);
  };
  for (const fs::path& input : inputs) {
    if (!fs::exists(input)) {
      throw DataError(concat(input.string(), ": expected an image or a folder of images; there is ",
                             "no such file or folder"));
    }
    if (fs::is_directory(input)) {
      for (const fs::path& image : images_in(input, channel_files, left_out)) add(image);
    } else {
      add(input);
    }
  }
  return images;
} catch (const fs::filesystem_error& error) {
  throw unreadable(error);
}

bool has_tiff_map(const fs::path& image, const PredictionKinds& kinds) {
  return kinds.tiff && has_extension(image, {".tif", ".tiff"});
}

std::vector<fs::path> PredictionFiles::all() const {
  std::vector<fs::path> files;
  for (const fs::path* file : {&map, &overlay, &probabilities}) {
    if (!file->empty()) files.push_back(*file);
  }
  return files;
}

std::vector<PredictionFiles> prediction_files(std::span<const fs::path> images,
                                              const fs::path& folder,
                                              const PredictionKinds& kinds) {
  std::vector<PredictionFiles> files;
  std::map<fs::path, fs::path> owners;  // image of each file
  std::set<fs::path> inputs;
  for (const fs::path& image : images) inputs.insert(fs::weakly_canonical(image));
  for (const fs::path& image : images) {
    files.push_back(files_of(image, folder, kinds));
    for (const fs::path& file : files.back().all()) {
      const auto [owner, added] = owners.emplace(file, image);
      if (!added) {
        throw ConfigError(concat(owner->second.string(), " and ", image.string(),
                                 " would both be written to ", file.string(),
                                 "; predict them into different folders"));
      }
      std::error_code unknown;  // of a folder that is none make_output_folder says so
      if (inputs.contains(fs::weakly_canonical(file, unknown))) {
        throw ConfigError(concat("-o ", folder.string(), ": ", file.string(),
                                 " is one of the images; choose another folder"));
      }
    }
  }
  return files;
}

void check_absent(std::span<const fs::path> files) {
  const auto is_there = [](const fs::path& file) { return fs::exists(file); };
  const auto first = std::find_if(files.begin(), files.end(), is_there);
  if (first == files.end()) return;
  const auto more = std::count_if(first + 1, files.end(), is_there);
  throw ConfigError(concat(first->string(), more > 0 ? concat(" and ", more, " more") : "",
                           more > 0 ? " are" : " is",
                           " there already; choose another folder with -o, or write over what is "
                           "there with --force"));
}

void make_output_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder)) error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (error) {
    throw ConfigError(concat("-o ", folder.string(), ": expected a folder to write to: ",
                             error.message(), "; choose another one"));
  }
}

}  // namespace lockstep
