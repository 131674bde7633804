#pragma once
// Weights in files. Written are safetensors files
// (https://github.com/huggingface/safetensors): u64 little-endian header length, a JSON header, raw
// little-endian data; to a temporary file, synced and renamed: a crash leaves the old file. Read
// are these and PyTorch's own (.pth, .pt).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

/// One named tensor on the host, rows contiguous. `dtype` as safetensors writes it: "F32", "F64",
/// "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"; of a file also types that nothing here
/// computes with, such as "U16" and "F8_E4M3".
struct HostTensor {
  std::string dtype = "F32";
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
  /// Bitwise: a NaN equals itself, and 0 is not -0.
  friend bool operator==(const HostTensor&, const HostTensor&) = default;
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

/// The tensors of a state dict in a file of their own, as PyTorch's safetensors writes them.
void save_safetensors(const std::filesystem::path& path, const TensorMap& tensors);
/// Throws DataError as `read_safetensors`.
TensorMap load_safetensors(const std::filesystem::path& path);

/// The tensors of a file that PyTorch's torch.save has written (.pth, .pt), of today's zip archives
/// and of the format before them: a state dict, or the state dict that a checkpoint has under
/// "state_dict", "model" or "model_state_dict", whose other entries are not read. Strided tensors
/// become contiguous; types stay. Nothing that the file names is executed. Throws DataError naming
/// file and cause for a damaged or foreign one, and for one whose pickle names what runs programs:
/// os.system, say. Objects of other classes are read over.
TensorMap load_pth(const std::filesystem::path& path);

/// The tensors of a file of weights, safetensors or .pth: its contents say which, not its name.
/// Throws DataError as they do, and naming what came instead (an HTML page, a Git LFS pointer, a
/// gzip'd file, ...) for anything else.
TensorMap load_weights(const std::filesystem::path& path);

}  // namespace lockstep
