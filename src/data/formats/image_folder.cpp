#include <algorithm>
#include <filesystem>
#include <utility>

#include "data/formats/file_pairs.h"
#include "data/formats/formats.h"
#include "data/normalize.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct ImageFile {
  fs::path path;
  Label label = 0;
};

class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::vector<ImageFile> files, ImageRule rule, std::vector<std::string> left_out)
      : files_(std::move(files)), rule_(std::move(rule)), left_out_(std::move(left_out)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  void load(std::int64_t index, Sample& sample) const override {
    read_image(file(index).path, sample.image, rule_);
    sample.labels = {1, 1, {file(index).label}};
  }
  Size image_size(std::int64_t index) const override {
    return read_image_size(file(index).path, rule_);
  }
  PixelType pixel_type(std::int64_t index) const override {
    return read_image_info(file(index).path, rule_).type;
  }
  std::string describe(std::int64_t index) const override { return file(index).path.string(); }
  std::vector<std::string> files(std::int64_t index) const override {
    std::vector<std::string> names;
    for (const fs::path& path : channel_files_of(file(index).path, rule_))
      names.push_back(path.string());
    return names;
  }
  std::vector<std::string> left_out() const override { return left_out_; }

 private:
  const ImageFile& file(std::int64_t index) const {
    LOCKSTEP_CHECK(index >= 0 && index < size(), "sample ", index, " of a data set of ", size());
    return files_[static_cast<std::size_t>(index)];
  }

  std::vector<ImageFile> files_;
  ImageRule rule_;
  std::vector<std::string> left_out_;
};

fs::path split_folder(const DataOptions& options, const std::string& split) {
  fs::path folder = options.root / split;
  // Of one folder that is divided by data.val_share the splits need no folders.
  if (options.val_share && !fs::is_directory(folder)) return options.root;
  check_split_folder(folder);
  return folder;
}

std::vector<std::string> class_folders(const fs::path& split) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(split)) {
    if (entry.is_directory() && !is_hidden(entry.path())) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<fs::path> images_below(const fs::path& folder, const DataOptions& options,
                                   LeftOut& left_out) {
  std::vector<fs::path> images;
  constexpr auto kOptions = fs::directory_options::follow_directory_symlink;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder, kOptions); entry != fs::end(entry);
         ++entry) {
      const fs::path& path = entry->path();
      if (is_hidden(path)) entry.disable_recursion_pending();
      if (entry->is_directory() || is_hidden(path)) continue;
      if (has_extension(path, image_extensions()) && entry->is_regular_file() &&
          begins_an_image(path, options.channel_files)) {
        images.push_back(path);
      } else {
        left_out.add_file(path, options.channel_files);
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw unreadable(error);
  }
  std::sort(images.begin(), images.end());
  return images;
}

void check_known(const fs::path& split, const std::vector<std::string>& folders,
                 const std::vector<std::string>& classes) {
  for (const std::string& folder : folders) {
    if (std::find(classes.begin(), classes.end(), folder) != classes.end()) continue;
    throw DataError(concat((split / folder).string(), " is not a class: none of the ",
                           classes.size(), " has this name"));
  }
}

bool is_subset(const std::vector<std::string>& names, const std::vector<std::string>& of) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(of.begin(), of.end(), name) != of.end();
  });
}

// [class] its folder. Where the folders' names are those of the classes, as in a run's own
// configuration, they say which is which, also where some of them, or the training split, are not
// there.
std::vector<std::string> folders_of_classes(const DataOptions& options) {
  const fs::path split = options.root / options.train;
  const bool there = fs::is_directory(split);
  if (!options.classes.empty() && (!there || is_subset(class_folders(split), options.classes))) {
    return options.classes;
  }
  return image_folder_classes(options);
}

}  // namespace

std::vector<std::string> image_folder_classes(const DataOptions& options) {
  const fs::path split = split_folder(options, options.train);
  std::vector<std::string> classes = class_folders(split);
  if (!classes.empty()) return classes;
  throw LayoutError(concat(split.string(), ": expected a folder for each class, found none"));
}

bool fits_image_folder(const DataOptions& options) {
  const fs::path split = options.root / options.train;
  return fs::is_directory(split) && !class_folders(split).empty();
}

std::unique_ptr<Dataset> make_image_folder(const DataOptions& options, Split split, std::uint64_t) {
  const std::vector<std::string> classes = folders_of_classes(options);
  if (static_cast<std::size_t>(options.num_classes) < classes.size()) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes, ", but ",
                             (options.root / options.train).string(), " has ", classes.size(),
                             " folders, one for each class; leave the key out"));
  }
  const fs::path folder =
      split_folder(options, split == Split::kTrain ? options.train : options.val);
  check_known(folder, class_folders(folder), classes);
  std::vector<ImageFile> files;
  LeftOut left_out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_directory()) left_out.add_file(entry.path());
  }
  LongWork work("listing " + folder.string(), "classes", static_cast<std::int64_t>(classes.size()));
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const fs::path of_class = folder / classes[c];
    const bool there = fs::is_directory(of_class);
    const std::vector<fs::path> images =
        there ? images_below(of_class, options, left_out) : std::vector<fs::path>{};
    if (there && images.empty() && split == Split::kTrain) {
      throw LayoutError(concat(of_class.string(), ": expected files ",
                               wildcards(image_extensions()), ", found none"));
    }
    for (const fs::path& image : images) files.push_back({image, static_cast<Label>(c)});
    work.advance();
  }
  if (files.empty()) throw DataError(concat(folder.string(), ": holds no image"));
  return std::make_unique<ImageFolder>(std::move(files), image_rule(options),
                                       left_out.sentences(folder, ""));
}

}  // namespace lockstep
