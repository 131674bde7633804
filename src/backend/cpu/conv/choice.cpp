#include "backend/cpu/conv/choice.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>

#include "backend/conv/autotuner.h"
#include "backend/cpu/conv/dnnl.h"
#include "backend/cpu/conv/trial_values.h"
#include "backend/cpu_kernels.h"
#include "backend/probe.h"
#include "core/seconds_since.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// Raised when an implementation of ours becomes faster or slower: choices are then made anew.
constexpr int kEnginesVersion = 9;

constexpr int kRounds = 3;  // of timing, candidates in turns
// What weights cost is paid once for a batch. Where they are at least this share of an image's
// values, four images are timed, so that it is not taken for what every image costs.
constexpr double kManyWeights = 0.5;
// Runs take turns at copies of the images, together up to 64 MB, which few caches hold: a step
// finds its tensors as far away. Small images get fewer bytes, so that a first run's peak memory
// stays near that of the training.
constexpr std::int64_t kFloatsInTurn = std::int64_t{16} << 20;
constexpr std::int64_t kMostTurns = 16;
// What is that much slower in a round is not timed again.
constexpr double kHopeless = 2.0;
// An implementation must be faster than a candidate above it in the table by more than this to be
// preferred: the noise of the clock is not to decide.
constexpr double kClearlyFaster = 0.97;

/// Whether it may be given tensors of the type, themselves or as copies in fp32.
bool can_take(const ConvEngine& engine, DType dtype) {
  return engine.tensors == DType::kFloat32 || engine.tensors == dtype;
}

/// What the user's list names first of those that can compute this; null where there is no list
/// or none of it can.
const ConvEngine* forced_engine(const ConvGeometry& geometry, ConvPass pass, DType dtype) {
  const char* list = std::getenv("LOCKSTEP_CONVOLUTION");
  if (list == nullptr || *list == '\0') return nullptr;
  if (cpu_kernels().fixed_convolutions) {
    throw ConfigError(concat("LOCKSTEP_CONVOLUTION=", list, " and kernels '", cpu_kernels().name,
                             "', whose convolutions are the same everywhere: leave one of the two "
                             "out"));
  }
  const ConvEngine* forced = nullptr;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    const ConvEngine* engine = find_conv_engine(name);
    if (engine == nullptr) {
      std::string known;
      for (const ConvEngine& each : conv_engines()) known += concat(" ", each.name);
      throw ConfigError(concat("LOCKSTEP_CONVOLUTION: expected names of", known,
                               ", separated by commas, got '", name,
                               "'; unset it to let the clock choose"));
    }
    if (!can_take(*engine, dtype)) {
      throw ConfigError(concat("LOCKSTEP_CONVOLUTION=", list, ": ", name, " reads and writes bf16 ",
                               "tensors, which run.precision = \"bf16\" gives it"));
    }
    if (forced == nullptr && engine->can_compute(geometry, pass)) forced = engine;
  }
  return forced;
}

struct Candidate {
  const ConvEngine* engine;
  std::unique_ptr<Convolution> convolution;
  double seconds = std::numeric_limits<double>::infinity();  // the least
};

/// One pass over the images on the calling thread.
class Trial {
 public:
  Trial(const ConvGeometry& geometry, const Shape& images, ConvPass pass, DType dtype)
      : pass_(pass),
        dtype_(dtype),
        input_(images),
        output_(geometry.output_shape(images)),
        turns_(std::min(kMostTurns, 1 + kFloatsInTurn / (input_.elements() + output_.elements()))),
        x_(turns_ * input_.elements(), turns_, dtype),
        y_(turns_ * output_.elements(), turns_, dtype),
        weight_(geometry.weight_elements()) {}

  /// Seconds; the first run of an implementation prepares it.
  double run(const Candidate& candidate) {
    Convolution& convolution = *candidate.convolution;
    convolution.prepare(pass_);
    const bool copies = dtype_ == DType::kBFloat16 && candidate.engine->tensors != dtype_;
    turn_ = (turn_ + 1) % turns_;
    const Tensor x = x_.tensor(input_, dtype_, turn_), y = y_.tensor(output_, dtype_, turn_);
    const std::size_t x_bytes = copies ? copy_bytes(input_) : 0;
    const std::size_t y_bytes = copies ? copy_bytes(output_) : 0;
    std::byte* memory = scratch_of(x_bytes + y_bytes + convolution.scratch_bytes(pass_, false));
    void* scratch = memory + x_bytes + y_bytes;
    const auto start = std::chrono::steady_clock::now();
    with_copies(pass_, x, copies ? Tensor(memory, input_) : x, y,
                copies ? Tensor(memory + x_bytes, output_) : y, 1,
                [&](const Tensor& input, const Tensor& output) {
                  switch (pass_) {
                    case ConvPass::kForward:
                      return convolution.forward(input, weight_.floats(), nullptr, output, scratch);
                    case ConvPass::kBackwardData:
                      return convolution.backward_data(output, weight_.floats(), input, scratch);
                    case ConvPass::kBackwardWeights:
                      return convolution.backward_weights(input, output, weight_.floats(), scratch);
                  }
                });
    return seconds_since(start);
  }

 private:
  std::byte* scratch_of(std::size_t bytes) {
    if (!scratch_ || scratch_bytes_ < bytes) {
      scratch_.emplace(static_cast<std::int64_t>(bytes / sizeof(float)) + 1, 0);
      scratch_bytes_ = bytes;
    }
    return reinterpret_cast<std::byte*>(scratch_->floats());
  }

  const ConvPass pass_;
  const DType dtype_;
  const Shape input_, output_;
  const std::int64_t turns_;
  const TrialValues x_, y_, weight_;
  std::int64_t turn_ = 0;
  std::optional<TrialValues> scratch_;
  std::size_t scratch_bytes_ = 0;
};

/// How many are timed at a time.
std::int64_t timed_images(const ConvGeometry& geometry, const Shape& image) {
  const auto values =
      static_cast<double>(image.elements() + geometry.output_shape(image).elements());
  return static_cast<double>(geometry.weight_elements()) < kManyWeights * values ? 1 : 4;
}

Measurement measure(const ConvGeometry& geometry, const Shape& image, ConvPass pass, DType dtype,
                    const std::vector<const ConvEngine*>& engines) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Shape images = image.with_batch(timed_images(geometry, image));
  std::vector<Candidate> candidates;
  for (const ConvEngine* engine : engines) {
    candidates.push_back({engine, engine->make(geometry, images, 1)});
  }
  Trial trial(geometry, images, pass, dtype);
  for (Candidate& candidate : candidates) trial.run(candidate);  // warms up
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates) {
      if (round > 0 && candidate.seconds > kHopeless * least) continue;
      candidate.seconds = std::min(candidate.seconds, trial.run(candidate));
      least = std::min(least, candidate.seconds);
    }
  }
  omp_set_num_threads(threads);

  Measurement measured;
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) {
    measured.milliseconds.emplace_back(candidate.engine->name, 1e3 * candidate.seconds);
    if (candidate.seconds >= kClearlyFaster * best) continue;
    best = candidate.seconds;
    measured.fastest = candidate.engine->name;
  }
  return measured;
}

}  // namespace

std::vector<const ConvEngine*> conv_candidates(const ConvGeometry& geometry, const Shape& input,
                                               ConvPass pass, DType dtype, bool exact) {
  const bool fixed = cpu_kernels().fixed_convolutions;
  std::vector<const ConvEngine*> candidates;
  for (const ConvEngine& engine : conv_engines()) {
    if (!engine.can_compute(geometry, pass)) continue;
    if (exact && dtype == DType::kFloat32 && !engine.exact) continue;
    if (fixed) {
      if (engine.fixed == nullptr || !engine.fixed(geometry, input)) continue;
      return {&engine};
    }
    if (!can_take(engine, dtype) || (engine.tensors != dtype && !engine.copies)) continue;
    if (engine.may_be_fastest(geometry, input)) candidates.push_back(&engine);
  }
  return candidates;
}

std::string conv_machine() {
  static const std::string name =
      concat(processor_name(), ", ", dnnl_version(), ", convolutions ", kEnginesVersion);
  return name;
}

const ConvEngine& choose_conv_engine(const ConvGeometry& geometry, const Shape& input,
                                     ConvPass pass, DType dtype, bool exact, bool training) {
  const Shape image = input.with_batch(1);
  const auto candidates = conv_candidates(geometry, image, pass, dtype, exact);
  const bool fewer =
      exact && candidates.size() < conv_candidates(geometry, image, pass, dtype).size();
  const ConvEngine* forced = forced_engine(geometry, pass, dtype);
  if (candidates.size() == 1 && forced == nullptr) return *candidates.front();
  // What all candidates pay for copies in fp32 changes no choice.
  const bool narrow = std::ranges::count(candidates, DType::kBFloat16, &ConvEngine::tensors) > 0;
  ChoiceRequest request;
  request.machine = conv_machine();
  request.problem =
      concat(to_string(geometry), ", ", to_string(pass), ", image ", image.height(), "x",
             image.width(), narrow ? ", bf16 tensors" : "", fewer ? ", exact" : "");
  if (forced != nullptr) request.forced = forced->name;
  request.usable = [&](const std::string& name) {
    return std::count(candidates.begin(), candidates.end(), find_conv_engine(name)) > 0;
  };
  request.rule = [&] {
    return std::string(
        (*std::find_if(candidates.begin(), candidates.end(), [&](const ConvEngine* engine) {
          return engine->leads(geometry);
        }))->name);
  };
  const DType timed = narrow ? DType::kBFloat16 : DType::kFloat32;
  if (training) {
    request.measure = [&] { return measure(geometry, image, pass, timed, candidates); };
  }
  return *find_conv_engine(Autotuner::of(Autotuner::default_file()).choose(request).chosen);
}

}  // namespace lockstep
