#pragma once
// The data sets that papers report on, as they are downloaded: classes, colours and files.

#include "lockstep/data/dataset.h"

namespace lockstep {

/// Pascal VOC 2012: 21 classes, 255 does not count. A split is a list of ImageSets/Segmentation:
/// of ids, or of image and mask (the augmented lists of SBD).
DataLayout voc_layout();

/// Cityscapes: leftImg8bit and gtFine; *_labelIds.png become the 19 classes, or else
/// *_labelTrainIds.png are them.
DataLayout cityscapes_layout();

/// ADE20K's scene parsing benchmark: 150 classes, 0 in the files is ignored; the splits train and
/// val are its folders training and validation.
DataLayout ade20k_layout();

}  // namespace lockstep
