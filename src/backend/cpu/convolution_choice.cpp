#include "backend/cpu/convolution_choice.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>

#include "backend/conv/autotuner.h"
#include "backend/cpu/bf16/conv.h"
#include "backend/cpu/convolution.h"
#include "backend/cpu/matmul/conv.h"
#include "backend/cpu/matmul/vec.h"
#include "backend/cpu/trial_values.h"
#include "backend/cpu/winograd/conv.h"
#include "backend/cpu_kernels.h"
#include "backend/probe.h"
#include "core/seconds_since.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// Raised when an implementation of ours becomes faster or slower: choices are then made anew.
constexpr int kEnginesVersion = 7;

// With fewer channels, more than half of our products are of padding.
constexpr std::int64_t kFewestChannels = 8;

constexpr int kRounds = 3;  // of timing, candidates in turns
// What weights cost is paid once for a batch. Where they are at least this share of an image's
// values, two images are timed, four if that takes milliseconds, so that it is not taken for what
// every image costs.
constexpr double kManyWeights = 0.5;
constexpr double kFewProducts = 0.25e9;  // multiply-adds of an image
// Runs take turns at copies of the images, together up to 64 MB, which few caches hold: a step
// finds its tensors as far away, and what fetches them ahead is to be seen. Small images get fewer
// bytes, so that a first run's peak memory stays near that of the training.
constexpr std::int64_t kFloatsInTurn = std::int64_t{16} << 20;
constexpr std::int64_t kMostTurns = 16;
// What is that much slower in a round is not timed again.
constexpr double kHopeless = 2.0;
// An implementation must be faster than an earlier candidate by more than this to be preferred: the
// noise of the clock is not to decide.
constexpr double kClearlyFaster = 0.97;

std::optional<ConvEngine> engine_of(const std::string& name) {
  for (const ConvEngine engine : kConvEngines) {
    if (name == to_string(engine)) return engine;
  }
  return std::nullopt;
}

// What kernels with fixed convolutions take, the first that can: implementations of ours wherever
// there is one, since oneDNN may ask the processor for the sizes of its caches.
constexpr std::array kFixedEngines = {ConvEngine::kWinograd8, ConvEngine::kMatmul8,
                                      ConvEngine::kOneDnn};

/// What rounds to bf16 and gains by it on this processor.
std::optional<ConvEngine> bf16_engine() {
  const bf16::Instructions best = bf16::best_instructions();
  if (best == bf16::Instructions::kAny) return std::nullopt;
  return *std::find_if(kConvEngines.begin(), kConvEngines.end(),
                       [&](ConvEngine engine) { return bf16_instructions(engine) == best; });
}

/// Those that keep fp32, where a clock chooses.
std::vector<ConvEngine> fp32_candidates(const ConvGeometry& geometry, const Shape& input,
                                        ConvPass pass) {
  const std::int64_t fewest = std::min(geometry.in_channels, geometry.out_channels);
  std::vector<ConvEngine> candidates{ConvEngine::kOneDnn};
  if (fewest < kFewestChannels) return candidates;
  const bool wide = matmul::native_lanes() >= 16;
  const bool winograd = winograd_supports(geometry) && winograd_fits(geometry, input);
  if (matmul_supports(geometry, pass) && (!winograd || matmul_skips_padding(geometry, input))) {
    candidates.push_back(wide ? ConvEngine::kMatmul16 : ConvEngine::kMatmul8);
  }
  if (winograd) {
    const auto place = winograd_pays(geometry) ? candidates.begin() : candidates.end();
    candidates.insert(place, ConvEngine::kWinograd8);
    if (wide) candidates.push_back(ConvEngine::kWinograd16);
  }
  return candidates;
}

/// What the user's list names first of those that can compute this.
std::optional<ConvEngine> forced_engine(const ConvGeometry& geometry, ConvPass pass, bool bf16) {
  const char* list = std::getenv("LOCKSTEP_CONVOLUTION");
  if (list == nullptr || *list == '\0') return std::nullopt;
  if (cpu_kernels().fixed_convolutions) {
    throw ConfigError(concat("LOCKSTEP_CONVOLUTION=", list, " and kernels '", cpu_kernels().name,
                             "', whose convolutions are the same everywhere: leave one of the two "
                             "out"));
  }
  std::optional<ConvEngine> forced;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    const auto engine = engine_of(name);
    if (!engine) {
      std::string known;
      for (const ConvEngine each : kConvEngines) known += concat(" ", to_string(each));
      throw ConfigError(concat("LOCKSTEP_CONVOLUTION: expected names of", known,
                               ", separated by commas, got '", name,
                               "'; unset it to let the clock choose"));
    }
    if (rounds_to_bf16(*engine) && !bf16) {
      throw ConfigError(concat("LOCKSTEP_CONVOLUTION=", list, ": ", name, " rounds to bf16, which ",
                               "is allowed where run.bf16_convolutions = true"));
    }
    if (!forced && can_compute(*engine, geometry, pass)) forced = engine;
  }
  return forced;
}

/// One pass over the images on the calling thread.
class Trial {
 public:
  Trial(const ConvGeometry& geometry, const Shape& images, ConvPass pass)
      : pass_(pass),
        input_(images),
        output_(geometry.output_shape(images)),
        turns_(std::min(kMostTurns, 1 + kFloatsInTurn / (input_.elements() + output_.elements()))),
        x_(turns_ * input_.elements(), turns_),
        y_(turns_ * output_.elements(), turns_),
        weight_(geometry.weight_elements()) {}

  /// Seconds; the first run of an implementation prepares it.
  double run(Convolution& convolution) {
    convolution.prepare(pass_);
    const std::size_t bytes = convolution.scratch_bytes(pass_, false);
    if (!scratch_ || scratch_bytes_ < bytes) {
      scratch_.emplace(static_cast<std::int64_t>(bytes / sizeof(float)) + 1, 0);
      scratch_bytes_ = bytes;
    }
    turn_ = (turn_ + 1) % turns_;
    const Tensor x(x_.data() + turn_ * input_.elements(), input_);
    const Tensor y(y_.data() + turn_ * output_.elements(), output_);
    const auto start = std::chrono::steady_clock::now();
    switch (pass_) {
      case ConvPass::kForward:
        convolution.forward(x, weight_.data(), nullptr, y, scratch_->data());
        break;
      case ConvPass::kBackwardData:
        convolution.backward_data(y, weight_.data(), x, scratch_->data());
        break;
      case ConvPass::kBackwardWeights:
        convolution.backward_weights(x, y, weight_.data(), scratch_->data());
        break;
    }
    return seconds_since(start);
  }

 private:
  const ConvPass pass_;
  const Shape input_, output_;
  const std::int64_t turns_;
  const TrialValues x_, y_, weight_;
  std::int64_t turn_ = 0;
  std::optional<TrialValues> scratch_;
  std::size_t scratch_bytes_ = 0;
};

struct Candidate {
  ConvEngine engine;
  std::unique_ptr<Convolution> convolution;
  double seconds = std::numeric_limits<double>::infinity();  // the least
};

/// How many are timed at a time.
std::int64_t timed_images(const ConvGeometry& geometry, const Shape& image) {
  const Shape output = geometry.output_shape(image);
  const auto values = static_cast<double>(image.elements() + output.elements());
  const auto weights = static_cast<double>(geometry.weight_elements());
  if (weights < kManyWeights * values) return 1;
  return weights * static_cast<double>(output.rows_per_sample()) <= kFewProducts ? 4 : 2;
}

Measurement measure(const ConvGeometry& geometry, const Shape& image, ConvPass pass,
                    const std::vector<ConvEngine>& engines) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Shape images = image.with_batch(timed_images(geometry, image));
  std::vector<Candidate> candidates;
  for (const ConvEngine engine : engines) {
    candidates.push_back({engine, make_convolution(engine, geometry, images, 1)});
  }
  Trial trial(geometry, images, pass);
  for (Candidate& candidate : candidates) trial.run(*candidate.convolution);  // warms up
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates) {
      if (round > 0 && candidate.seconds > kHopeless * least) continue;
      candidate.seconds = std::min(candidate.seconds, trial.run(*candidate.convolution));
      least = std::min(least, candidate.seconds);
    }
  }
  omp_set_num_threads(threads);

  // Ours first: on several threads oneDNN loses a few percent more of what it does on one.
  std::stable_partition(candidates.begin(), candidates.end(), [](const Candidate& candidate) {
    return candidate.engine != ConvEngine::kOneDnn;
  });
  Measurement measured;
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) {
    measured.milliseconds.emplace_back(to_string(candidate.engine), 1e3 * candidate.seconds);
    if (candidate.seconds >= kClearlyFaster * best) continue;
    best = candidate.seconds;
    measured.fastest = to_string(candidate.engine);
  }
  return measured;
}

}  // namespace

const char* to_string(ConvEngine engine) {
  switch (engine) {
    case ConvEngine::kOneDnn:
      return "onednn";
    case ConvEngine::kWinograd8:
      return "winograd8";
    case ConvEngine::kWinograd16:
      return "winograd16";
    case ConvEngine::kMatmul8:
      return "matmul8";
    case ConvEngine::kMatmul16:
      return "matmul16";
    case ConvEngine::kBf16:
      return "bf16";
    case ConvEngine::kBf16Avx512:
      return "bf16_avx512";
    case ConvEngine::kBf16Amx:
      return "bf16_amx";
  }
  return "?";
}

std::optional<bf16::Instructions> bf16_instructions(ConvEngine engine) {
  switch (engine) {
    case ConvEngine::kBf16:
      return bf16::Instructions::kAny;
    case ConvEngine::kBf16Avx512:
      return bf16::Instructions::kAvx512Bf16;
    case ConvEngine::kBf16Amx:
      return bf16::Instructions::kAmx;
    default:
      return std::nullopt;
  }
}

bool can_compute(ConvEngine engine, const ConvGeometry& geometry, ConvPass pass) {
  switch (engine) {
    case ConvEngine::kOneDnn:
      return true;
    case ConvEngine::kWinograd8:
    case ConvEngine::kWinograd16:
      return winograd_supports(geometry);
    case ConvEngine::kMatmul8:
    case ConvEngine::kMatmul16:
      return matmul_supports(geometry, pass);
    case ConvEngine::kBf16:
    case ConvEngine::kBf16Avx512:
    case ConvEngine::kBf16Amx:
      return bf16_supports(geometry) && bf16::usable(*bf16_instructions(engine));
  }
  return false;
}

std::vector<ConvEngine> conv_candidates(const ConvGeometry& geometry, const Shape& input,
                                        ConvPass pass, bool bf16) {
  if (cpu_kernels().fixed_convolutions) {
    return {*std::find_if(kFixedEngines.begin(), kFixedEngines.end(),
                          [&](ConvEngine engine) { return can_compute(engine, geometry, pass); })};
  }
  auto candidates = fp32_candidates(geometry, input, pass);
  const auto engine = bf16 ? bf16_engine() : std::nullopt;
  if (engine && can_compute(*engine, geometry, pass)) {
    candidates.insert(candidates.begin(), *engine);
  }
  return candidates;
}
std::string conv_machine() {
  static const std::string name =
      concat(processor_name(), ", ", dnnl_version(), ", convolutions ", kEnginesVersion);
  return name;
}

ConvEngine choose_conv_engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                              bool bf16) {
  const Shape image = input.with_batch(1);
  const std::vector<ConvEngine> candidates = conv_candidates(geometry, image, pass, bf16);
  ChoiceRequest request;
  request.machine = conv_machine();
  request.problem = concat(to_string(geometry), ", ", to_string(pass), ", image ", image.height(),
                           "x", image.width(), bf16 ? ", bf16 allowed" : "");
  if (const auto forced = forced_engine(geometry, pass, bf16)) request.forced = to_string(*forced);
  request.usable = [&](const std::string& name) {
    const auto engine = engine_of(name);
    return engine && std::count(candidates.begin(), candidates.end(), *engine) > 0;
  };
  request.rule = [&] { return std::string(to_string(candidates.front())); };
  request.measure = [&] { return measure(geometry, image, pass, candidates); };
  if (candidates.size() == 1 && !request.forced) return candidates.front();
  return *engine_of(Autotuner::of(Autotuner::default_file()).choose(request).chosen);
}

}  // namespace lockstep
