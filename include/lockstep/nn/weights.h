#pragma once
// Weights in files, and in and out of networks. Written are safetensors files
// (https://github.com/huggingface/safetensors): u64 little-endian header length, a JSON header, raw
// little-endian data; to a temporary file, synced and renamed: a crash leaves the old file. Read
// are these and PyTorch's own (.pth, .pt).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// One named tensor on the host, rows contiguous. `dtype` as safetensors writes it: "F32", "F64",
/// "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL".
struct HostTensor {
  std::string dtype = "F32";
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

using TensorMap = std::map<std::string, HostTensor>;
using Metadata = std::map<std::string, std::string>;

struct SafetensorsFile {
  TensorMap tensors;
  Metadata metadata;
};

/// Throws Error naming file and cause when writing fails (disk full, ...); the target is then
/// untouched.
void write_safetensors(const std::filesystem::path& path, const SafetensorsFile& file);
/// Throws DataError naming file, what was expected and what came for a damaged or foreign file.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

/// Writes `bytes` beside `path`, syncs file and directory, and renames. Throws Error; `path` is
/// then untouched.
void write_file_atomically(const std::filesystem::path& path, const std::string& bytes);

/// The tensors of a state dict in a file of their own, as PyTorch's safetensors writes them.
void save_safetensors(const std::filesystem::path& path, const TensorMap& tensors);
/// Throws DataError as `read_safetensors`.
TensorMap load_safetensors(const std::filesystem::path& path);

/// The tensors of a file that PyTorch's torch.save has written (.pth, .pt), of today's zip archives
/// and of the format before them: a state dict, or the state dict that a checkpoint has under
/// "state_dict", "model" or "model_state_dict", whose other entries are not read. Strided tensors
/// become contiguous; types stay. Nothing that the file names is executed. Throws DataError naming
/// file and cause for a damaged or foreign one, and for one whose pickle names anything but
/// tensors, plain values and what checkpoints are known to hold beside weights.
TensorMap load_pth(const std::filesystem::path& path);

/// The tensors of a file of weights, safetensors or .pth: its contents say which, not its name.
/// Throws DataError as they do, and naming what came instead (an HTML page, a Git LFS pointer, a
/// gzip'd file, ...) for anything else.
TensorMap load_weights(const std::filesystem::path& path);

/// All parameters and BatchNorm states under PyTorch's names (running_mean, running_var,
/// num_batches_tracked [I64 scalar]).
TensorMap export_weights(const ParameterStore& store, Backend& backend);

/// What `import_weights` did.
struct ImportSummary {
  int loaded = 0;
  std::vector<std::string>
      skipped;  // "head.weight: [21, 16, 1, 1] in the file, [11, 16, 1, 1] here"
  std::vector<std::string> missing;     // tensors of the network that the file lacks
  std::vector<std::string> unexpected;  // tensors of the file that the network lacks
  /// "module." + NAME in the file was `network_prefix` + NAME here; both empty: the same names.
  std::string file_prefix, network_prefix;
};

/// For people, in one paragraph: "318 of the network's 320 tensors loaded (\"NAME\" in the file is
/// \"backbone.NAME\" here); 2 skipped: ...".
std::string describe_import(const ImportSummary& summary);

/// Copies tensors by name. Parameters and running statistics may be F32, or F16, BF16 and F64,
/// which become fp32; the file may lack num_batches_tracked. What has another shape, as a head for
/// other classes has, is skipped.
///
/// One of the two may have a wrapper's name in front: "module.conv.weight" or
/// "backbone.conv.weight" for "conv.weight". Tried are the names as they are; names of the file
/// without a prefix that it has in common; with a prefix that the network has in common; and both.
/// A prefix ends in a dot, is of at most 8 parts, and stands before at least half as many names as
/// the file or the network has, whichever has fewer (num_batches_tracked never counts); a change
/// must give as many tensors of the network their names. The one that finds most tensors of the
/// same name and shape is taken; among equals the one that finds most names; then the names as they
/// are before one prefix before two, the shorter, and the first by the alphabet. Names of the file
/// without the prefix that is taken off stay as they are.
///
/// `strict`: throws DataError, before anything is copied, when a tensor is skipped, missing
/// (num_batches_tracked excepted) or unexpected.
ImportSummary import_weights(const TensorMap& tensors, ParameterStore& store, Backend& backend,
                             bool strict);

}  // namespace lockstep
