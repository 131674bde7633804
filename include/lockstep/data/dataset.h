#pragma once
// Data sets: numbered samples of an image and its labels, a map of equal size or one for the whole
// image. A sample is a pure function of its index; decoding is safe from several threads at
// once. A label is a class or `ignored_label`, never anything else: who loads a sample need not
// check again.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/options.h"
#include "lockstep/data/batch.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// An image and its labels, of the image's size, or 1 x 1 for one label of the whole image.
struct Sample {
  Image image;
  LabelMap labels;
};

/// Which part of the data: what is trained on, or what scores are of.
enum class Split : std::uint8_t { kTrain, kVal };

/// x becomes x*g + o*(1-g) per image: g log-uniform in [lo, 1], o uniform in [0, offset] (of 255),
/// a function of (seed, split, sample) only: a camera whose exposure varies. Train and val alike.
struct ExposureOptions {
  float lo = 1;
  float offset = 0;
};

struct AugmentOptions {
  std::optional<Size> crop = std::nullopt;
  float scale_lo = 1, scale_hi = 1;  // random scale, uniform
  // Random-resized crop: a part of the image with this share of its area, uniform, and this width
  // over height, log-uniform, becomes `crop` (torchvision's RandomResizedCrop).
  std::optional<std::array<float, 2>> crop_area = std::nullopt;
  std::array<float, 2> crop_aspect{3.0F / 4, 4.0F / 3};
  // With this probability the middle of the crop is a pixel of a class, each pixel as likely; the
  // class is one that the image has, each as likely: of these, or where there are none of all but
  // class 0. At the image's edge the crop stays within. An image without: as any other crop.
  float class_crops = 0;
  std::vector<int> class_crops_of = {};
  float hflip = 0, vflip = 0;  // probabilities
  bool rotate90 = false;       // turned by 0, 90, 180 or 270 degrees, each as likely
  bool photometric = false;    // brightness, contrast, saturation, hue
  // After normalisation, of values that are there: x becomes x*g + s + n, g uniform in `gain` and s
  // in +-`shift`, both of the whole image, and n of each value, normal, of deviation `noise`.
  std::array<float, 2> gain{1, 1};
  float shift = 0, noise = 0;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("crop", crop, "random crop [height, width]");
    std::array<float, 2> scale{scale_lo, scale_hi};
    v("scale", scale, "random scale [lo, hi]", {.in = {.hi = 100}, .written = !crop_area});
    scale_lo = scale[0], scale_hi = scale[1];
    v("crop_area", crop_area, "random-resized crop: share of the image [lo, hi]",
      {.in = {.hi = 1}});
    v("crop_aspect", crop_aspect, "its width over its height [lo, hi]",
      {.in = {.hi = 100}, .written = crop_area.has_value()});
    v("class_crops", class_crops, "probability that the crop's middle is a pixel of a class",
      {.in = limits::kShare, .written = class_crops != 0});
    v("class_crops_of", class_crops_of, "of one of these classes; default: all but class 0",
      {.in = {.lo = 0, .hi = 4095}, .written = !class_crops_of.empty()});
    v("hflip", hflip, "probability of a horizontal flip", {.in = limits::kShare});
    v("vflip", vflip, "probability of a vertical flip",
      {.in = limits::kShare, .written = vflip != 0});
    v("rotate90", rotate90, "turned by 0, 90, 180 or 270 degrees, each as likely",
      {.written = rotate90});
    v("photometric", photometric, "of 8-bit RGB: brightness, contrast, saturation, hue");
    v("gain", gain, "after normalisation, an image's values times one factor in [lo, hi]",
      {.in = {.hi = 100}, .written = gain != std::array{1.0F, 1.0F}});
    v("shift", shift, "then plus one number within +-shift standard deviations",
      {.in = limits::kNotNegative, .written = shift != 0});
    v("noise", noise, "then plus noise of so many standard deviations",
      {.in = limits::kNotNegative, .written = noise != 0});
  }
};

/// What the values in files of masks mean.
enum class MaskValues : std::uint8_t {
  kClasses,    // classes, or what the layout makes of them
  kBinary,     // 0 is class 0 and 255 is class 1: black-and-white pictures, also of one bit
  kInstances,  // 0 is class 0 and everything else is class 1: objects, numbered
};
constexpr auto names_of(MaskValues) {
  return std::to_array<Named<MaskValues>>({{"classes", MaskValues::kClasses},
                                           {"binary", MaskValues::kBinary},
                                           {"instances", MaskValues::kInstances}});
}

constexpr auto names_of(PixelType) {
  return std::to_array<Named<PixelType>>({{"uint8", PixelType::kUint8},
                                          {"int8", PixelType::kInt8},
                                          {"uint16", PixelType::kUint16},
                                          {"int16", PixelType::kInt16},
                                          {"uint32", PixelType::kUint32},
                                          {"int32", PixelType::kInt32},
                                          {"uint64", PixelType::kUint64},
                                          {"int64", PixelType::kInt64},
                                          {"float16", PixelType::kFloat16},
                                          {"float32", PixelType::kFloat32},
                                          {"float64", PixelType::kFloat64}});
}

/// Whose mean and deviation make an image the network's input, for each channel.
enum class Normalization : std::uint8_t {
  kGiven,       // those of the options
  kDataset,     // those of all pixels of the training split
  kImage,       // each image's own
  kPercentile,  // of each image two percentiles become 0 and 1; what is beyond is cut off
};
constexpr auto names_of(Normalization) {
  return std::to_array<Named<Normalization>>({{"given", Normalization::kGiven},
                                              {"dataset", Normalization::kDataset},
                                              {"image", Normalization::kImage},
                                              {"percentile", Normalization::kPercentile}});
}

constexpr auto names_of(ImageOrientation) {
  return std::to_array<Named<ImageOrientation>>(
      {{"viewer", ImageOrientation::kViewer}, {"stored", ImageOrientation::kStored}});
}

/// What the values of an image's pixels are, and how they become the network's input.
struct PixelOptions {
  int channels = 3;        // of the network's input
  std::vector<int> bands;  // of a file's channels those that count, from 0; empty: all
  // Of an image in several files: what their names end in, before the extension. A split lists the
  // first of them; the channels of all follow one another.
  std::vector<std::string> channel_files;
  std::optional<double> nodata;  // a value that is not there; without: what a file itself says
  /// Not set: given where the images are 8-bit RGB or `mean` is not the default, else dataset.
  std::optional<Normalization> normalize;
  // Of each channel, or one of all: of 8-bit values in 0..1, of all others as the files have them.
  std::vector<float> mean{0.485F, 0.456F, 0.406F};
  std::vector<float> std{0.229F, 0.224F, 0.225F};
  std::vector<float> percentiles{1, 99};
  /// What `mean` and `std` are of; not set: uint8. settle_normalization (data/normalize.h) sets it.
  std::optional<PixelType> pixels;
  std::vector<int> display;  // channels that pictures show: three, or one

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("channels", channels, "of an image, as the network sees it",
      {.in = {.lo = 1, .hi = 4096}, .written = channels != 3});
    v("bands", bands, "of a file's channels, counted from 0, those that count, in this order",
      {.in = {.lo = 0, .hi = 4095}, .written = !bands.empty()});
    v("channel_files", channel_files,
      "[\"_0000\", \"_0001\"]: an image is so many files, whose names end so",
      {.what = "ends of names", .written = !channel_files.empty()});
    v("nodata", nodata,
      "the value of what is not there, as NaN and infinity are; default: what a TIFF says",
      {.written = nodata.has_value()});
    v("normalize", normalize,
      "by the mean and std that are given, or of the dataset, each image, or percentile; default: "
      "given for 8-bit RGB, else dataset",
      {.written = normalize.has_value()});
    v("mean", mean, "of each channel; of 8-bit images in 0..1");
    v("std", std, "of each channel; of 8-bit images in 0..1", {.in = limits::kPositive});
    v("percentiles", percentiles, "[lo, hi] of each image become 0 and 1",
      {.in = {.lo = 0, .hi = 100}, .written = normalize == Normalization::kPercentile});
    v("pixels", pixels, "the files' numbers that mean and std are of: uint8, uint16, float32, ...",
      {.written = pixels.has_value()});
    v("display", display, "channels that pictures show, from 0: three, or one",
      {.in = {.lo = 0, .hi = 4095}, .counts = false, .written = !display.empty()});
  }
};

struct DataLayout;
using LayoutTable = std::vector<DataLayout>;

/// The layouts that come with the library: folder, list, voc, cityscapes, ade20k, camvid and
/// streets for segmentation; imagefolder, cifar10 and shapes for classification.
const LayoutTable& builtin_layouts();

struct DataOptions : PixelOptions {
  std::string layout = "folder";
  const LayoutTable* layouts = &builtin_layouts();  // where it is looked up; outlives the options
  std::filesystem::path root;
  std::string train = "train", val = "val";
  int num_classes = 0;
  int ignore_index = 255;            // the value that does not count; it may be a class
  std::vector<std::string> classes;  // names, for tables; may be empty
  MaskValues mask_values = MaskValues::kClasses;
  // A colour such as "#804080" for each class: masks in RGB are read by them, pictures drawn with
  // them. May be empty.
  std::vector<std::string> palette;
  std::vector<std::string> ignore_colors;                    // of masks in RGB: become ignore_index
  ImageOrientation orientation = ImageOrientation::kViewer;  // of images and masks in files
  std::string mask_suffix;         // of masks in folders: "_mask" where a.jpg has a_mask.png
  bool subfolders = false;         // images and masks in folders below count
  std::optional<float> val_share;  // of the training split's samples, by their names: validation
  // Samples that cannot be read are left out: all are read once when the data set is made.
  bool skip_broken = false;
  std::optional<Size> resize;
  std::optional<int> val_resize;  // validation: the shorter side, before val_crop
  std::optional<Size> val_crop;   // validation: the central part
  std::optional<ExposureOptions> exposure;
  int crops_per_image = 1;  // of training: an epoch has so many of every image
  bool shuffle = true;
  int workers = 2;  // background threads of the training loader; 0: decode in the caller's thread
  int cache_mb = 512;   // memory for decoded, resized samples, per split; 0: decode every epoch
  Size size{180, 240};  // of generated images
  int train_images = 400, val_images = 100;  // generated ones: how many
  std::optional<AugmentOptions> augment;

  /// Whether the classes' names are part of the data (DataLayout::find_classes).
  bool has_classes_in_data() const;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    visit_files(v);
    visit_labels(v);
    visit_images(v);
    v.section("augment", augment);
  }

 private:
  template <typename Visitor>
  void visit_files(Visitor& v) {
    v("layout", layout,
      "folder, list, voc, cityscapes, ade20k, camvid, streets (generated); classification: "
      "imagefolder, cifar10, shapes (generated)");
    v("root", root,
      "folder of the data set; a relative path is one from the current directory, or else from the "
      "configuration",
      {.what = "a folder"});
    v("train", train, "name of the split");
    v("val", val, "name of the split");
    v("val_share", val_share, "the share of the training split that is validation, by names",
      {.in = {.lo = 0, .hi = 1, .above = true, .below = true}});
    v("mask_suffix", mask_suffix, "folder, camvid: a_mask.png is the mask of a.jpg with \"_mask\"",
      {.what = "the end of a mask's name, without .png"});
    v("subfolders", subfolders, "folder, camvid: images and masks in folders below count, too",
      {.written = subfolders});
  }
  template <typename Visitor>
  void visit_labels(Visitor& v) {
    const auto check_color = [](const std::string& text) { parse_color(text); };
    v("num_classes", num_classes, "", {.in = {.lo = 1, .hi = 4096}});
    v("ignore_index", ignore_index,
      "label value that does not count; default 255, classification: none",
      {.in = {.lo = 0, .hi = 65535}});
    // Those that were found say no more than the data does.
    v("classes", classes, "names, for tables; imagefolder: by default those of the folders",
      {.what = "class names", .counts = !has_classes_in_data()});
    v("mask_values", mask_values,
      "binary: black-and-white masks, white is class 1; instances: all but 0 is class 1",
      {.written = mask_values != MaskValues::kClasses});
    v("palette", palette, "a colour for each class: of masks in RGB, and of pictures",
      {.what = "colours such as \"#804080\"", .check = check_color});
    v("ignore_colors", ignore_colors, "of masks in RGB: what does not count",
      {.what = "colours such as \"#000000\"", .check = check_color});
    v("skip_broken", skip_broken, "leave out samples that cannot be read, after reading all once",
      {.written = skip_broken});
  }
  template <typename Visitor>
  void visit_images(Visitor& v) {
    v("orientation", orientation,
      "of images and masks: viewer (turned as EXIF says), stored (as the file has them)",
      {.written = orientation != ImageOrientation::kViewer});
    PixelOptions::visit_options(v);
    v("resize", resize, "[height, width]");
    v("val_resize", val_resize, "validation: the shorter side becomes this long",
      {.in = {.lo = 1, .hi = 65536}});
    v("val_crop", val_crop, "validation: the central [height, width]");
    v("exposure", exposure, "[lo, offset]: a camera whose exposure varies");
    v("crops_per_image", crops_per_image, "training: an epoch has so many crops of every image",
      {.in = {.lo = 1, .hi = 1e6}, .written = crops_per_image != 1});
    v("shuffle", shuffle, "");
    v("workers", workers, "threads that decode and augment",
      {.in = {.lo = 0, .hi = 256}, .counts = false});
    v("cache_mb", cache_mb, "memory for decoded images, per split",
      {.in = {.lo = 0, .hi = 1e6}, .counts = false});
    v("size", size, "[height, width] of generated images");
    v("train_images", train_images, "generated: how many", {.in = {.lo = 1, .hi = 1e9}});
    v("val_images", val_images, "generated: how many", {.in = {.lo = 1, .hi = 1e9}});
  }
};

/// The samples of a split, numbered from 0. To bring data of your own, derive from it and give the
/// program a DataLayout that makes it. All functions are safe from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// How many samples there are. Does not change.
  virtual std::int64_t size() const = 0;
  /// Decodes sample `index`, before resizing and augmentation, into `sample`, whose buffers are
  /// reused. REQUIRES: 0 <= index < size(), as everywhere here. Throws DataError naming the file
  /// (and value and pixel for a label that is neither a class nor ignored).
  virtual void load(std::int64_t index, Sample& sample) const = 0;
  /// The same in memory of its own.
  Sample load(std::int64_t index) const;
  /// Decodes a part of the sample as it is in the whole one, without the rest: what is wrong
  /// elsewhere is not seen. Gives false where that cannot be. REQUIRES: the image has that part.
  virtual bool load_part(std::int64_t /*index*/, const ImagePart& /*part*/,
                         Sample& /*sample*/) const {
    return false;
  }
  /// Size of the image in pixels, from the file's header alone. Throws DataError as `load`.
  virtual Size image_size(std::int64_t index) const = 0;
  /// The numbers in the image's file, from its header alone. Throws DataError as `load`.
  virtual PixelType pixel_type(std::int64_t /*index*/) const { return PixelType::kUint8; }
  /// What to call sample `index` in messages: its file, mostly.
  virtual std::string describe(std::int64_t index) const = 0;
  /// The paths of what sample `index` is made of, its image and its labels, which tell whether two
  /// data sets hold the same. None: it is in no file.
  virtual std::vector<std::string> files(std::int64_t /*index*/) const { return {}; }
  /// What was left out because it could not be read, a message for each: DataOptions::skip_broken.
  virtual std::vector<std::string> skipped() const { return {}; }
  /// Images that lie in the data set's folders and that its layout does not take, a sentence each.
  virtual std::vector<std::string> left_out() const { return {}; }
};

/// An entry of a table of layouts: what a configuration calls `name` in data.layout.
struct DataLayout {
  std::string name;
  /// The samples of a split. `options.num_classes` is the number of classes, not 0. Throws
  /// DataError when the data are not there or not whole, ConfigError for options that do not fit.
  std::function<std::unique_ptr<Dataset>(const DataOptions& options, Split split,
                                         std::uint64_t seed)>
      make;
  std::vector<std::string> classes = {};  // its own; empty: data.num_classes says how many
  /// Where the classes' names are part of the data: reads them. Throws DataError.
  std::function<std::vector<std::string>(const DataOptions& options)> find_classes = nullptr;
  Task task = Task::kSegmentation;
  bool generated = false;      // needs no data.root; its images are of data.size
  bool pairs_by_name = false;  // knows data.mask_suffix and data.subfolders
  /// Whether the files below `options.root` lie as it has them: for messages. May be null.
  std::function<bool(const DataOptions& options)> fits = nullptr;
  std::vector<Color> palette = {};  // colours of `classes`; empty: Pascal VOC's (io/image.h)
  /// [class] what a class is called in files that the benchmark's server takes; empty: the server
  /// takes classes as they are, or there is none.
  std::vector<Label> file_values = {};
};

/// The entry of `options.layout`. Throws ConfigError naming what there is when there is none.
const DataLayout& find_layout(const DataOptions& options);

/// Finds the samples of a split; what does not count has `ignored_label`. Throws DataError when the
/// root or the split is missing or empty, or when an image has no mask or a mask no image (naming
/// the first few), ConfigError for options that do not fit.
std::unique_ptr<Dataset> make_dataset(const DataOptions& options, Split split, std::uint64_t seed);

/// The classes that the layout itself knows: its own, or those found below `options.root`. Empty:
/// none. Throws DataError.
std::vector<std::string> layout_classes(const DataOptions& options);

/// `options.num_classes`, else the number of classes of a layout that has its own. Throws
/// ConfigError for a layout that has none, DataError when its data cannot be read.
int class_count(const DataOptions& options);

/// The label of what does not count, in the samples of `make_dataset` and all that is made of them:
/// `options.ignore_index`, or the largest label where that is a class, so that no class has it.
/// What a loss over such a data set has as its ignore_index.
Label ignored_label(const DataOptions& options);

/// Names of the classes: `options.classes`, else the layout's own, else "class_0", ...
std::vector<std::string> class_names(const DataOptions& options);

/// A colour for each class: `options.palette`, or else those of the layout where it has
/// `num_classes` of them, or else VOC's. Throws ConfigError as class_count and parse_color do.
std::vector<Color> class_colors(const DataOptions& options);

}  // namespace lockstep
