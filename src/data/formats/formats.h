#pragma once
// The formats of data sets beside folders of images and masks: classes, colours and files.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

// --- as they are downloaded: those that papers on segmentation report on ---

/// Pascal VOC 2012: 21 classes, 255 does not count. A split is a list of ImageSets/Segmentation:
/// of ids, or of image and mask (the augmented lists of SBD).
DataLayout voc_layout();

/// Cityscapes: leftImg8bit and gtFine; *_labelIds.png become the 19 classes, or else
/// *_labelTrainIds.png are them.
DataLayout cityscapes_layout();

/// ADE20K's scene parsing benchmark: 150 classes, 0 in the files is ignored; the splits train and
/// val are its folders training and validation.
DataLayout ade20k_layout();

// --- cifar10 ---
// The "binary version" of CIFAR-10 (Krizhevsky 2009): data_batch_1.bin to data_batch_5.bin and
// test_batch.bin in `root`, or in its folder cifar-10-batches-bin. A record is a byte, the class,
// and 3072 of the image: 32x32, red, then green, then blue.

const std::vector<std::string>& cifar10_class_names();

/// Split "train": the five files; "val" or "test": test_batch.bin. Reads the sizes of the files at
/// once and records when they are asked for. Throws DataError for files that are missing or not
/// whole, ConfigError for another split or another number of classes.
std::unique_ptr<Dataset> make_cifar10(const DataOptions& options, Split split, std::uint64_t seed);

// --- imagefolder ---
// torchvision's ImageFolder: <root>/<split>/<class>/.../*.{jpg,jpeg,png}, a folder for each class,
// classes in the order of their folders' names.

/// The folders of the training split, sorted: the classes of every split. Throws DataError when
/// there are none.
std::vector<std::string> image_folder_classes(const DataOptions& options);

/// Whether there is a folder for the training split, with folders in it.
bool fits_image_folder(const DataOptions& options);

/// The images of a split by class, then by path. A class may be without images in a split other
/// than training's; a folder that is no class of training is an error, because numbers counted
/// anew would shift. Throws DataError.
std::unique_ptr<Dataset> make_image_folder(const DataOptions& options, Split split,
                                           std::uint64_t seed);

}  // namespace lockstep
