#pragma once
// The image formats, decoding from memory, TIFF also from a file. `name` is the file's, for
// messages. All throw DataError. Where a rule asks for a part, what leaves an image of its size has
// decoded no more; what decodes the whole leaves that.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/image_io.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// Throws for a size that only a damaged header claims, before memory is asked for.
void check_image_size(Size size, const std::string& name);

/// The part that is asked for, or all. Throws where an image has no such part.
ImagePart part_of(Size image, const std::optional<ImagePart>& part, const std::string& name);

class FileBytes;
class RowSource;

using ImageBytes = std::span<const std::uint8_t>;

bool is_jpeg(ImageBytes file);
bool is_png(ImageBytes file);

ImageInfo jpeg_info(ImageBytes file, const std::string& name);
void decode_jpeg(ImageBytes file, const std::string& name, const ImageRule& rule, Image& image);

/// Works on the first 26 bytes of a file too.
ImageInfo png_info(ImageBytes file, const std::string& name);
void decode_png(ImageBytes file, const std::string& name, const ImageRule& rule, Image& image);
/// Whether values are indices of a palette. Works on the first 26 bytes of a file too.
bool is_indexed_png(ImageBytes file);
std::vector<Color> png_palette(ImageBytes file, const std::string& name);
MaskKind decode_png_mask(ImageBytes file, const std::string& name, const LabelRule& rule,
                         LabelMap& labels, Image& colored);

bool is_npy(ImageBytes file);
/// `head`: the beginning of a file of `file_bytes`.
ImageInfo npy_info(ImageBytes head, std::uint64_t file_bytes, const std::string& name,
                   const ImageRule& rule);
void decode_npy(const FileBytes& bytes, const std::string& name, const ImageRule& rule,
                Image& image);
void decode_npy_mask(const FileBytes& bytes, const std::string& name, const LabelRule& rule,
                     LabelMap& labels);

bool is_tiff(ImageBytes file);
ImageInfo tiff_info(FileBytes& bytes, const std::string& name, const ImageRule& rule);
void decode_tiff(FileBytes& bytes, const std::string& name, const ImageRule& rule, Image& image);
/// Of the first page; empty where values are no indices of one.
std::vector<Color> tiff_palette(FileBytes& bytes, const std::string& name);
MaskKind decode_tiff_mask(FileBytes& bytes, const std::string& name, const LabelRule& rule,
                          LabelMap& labels, Image& colored);

/// Null where they cannot be read by themselves.
std::unique_ptr<RowSource> tiff_rows(const std::filesystem::path& path, const ImageRule& rule);
std::unique_ptr<RowSource> npy_rows(const std::filesystem::path& path, const ImageRule& rule);
/// By what the file is.
std::unique_ptr<RowSource> rows_of_file(const std::filesystem::path& path, const ImageRule& rule);

/// Of one of several files of an image: what it has itself, all of it.
ImageRule rule_of_part(const std::filesystem::path& file, const ImageRule& rule);

}  // namespace lockstep
