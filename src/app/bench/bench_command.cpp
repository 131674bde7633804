// lockstep bench: how long a training step takes, and where its time goes.

#include "app/bench/bench.h"
#include "app/command.h"
#include "config/config.h"

namespace lockstep {
namespace {

void declare_bench(Options& options, BenchArguments& arguments) {
  options.add("WHAT", arguments.what, "step, layers, batch_norm or exchange")
      .takes("step|layers|batch_norm|exchange")
      .required();
  options.add_config("CONFIG", arguments.config, "step, layers: configuration")
      .goes_with({"step", "layers"});
  options
      .add_flag("--eval", arguments.eval,
                "layers: of an evaluation of one image, not of a training step")
      .goes_with({"layers"});
  options
      .add("--against", arguments.against,
           "step: time a training with this setting changed, too, step by step in turns")
      .takes("KEY=VALUE")
      .one_value_each()
      .goes_with({"step"});
  options.add("--iters", arguments.iters, "measured iterations; default: the benchmark's own")
      .takes_count(1, 1000000);
  options.add_devices();
  options.add_overrides().goes_with({"step", "layers"});
  options.add_json();
}

int run_bench(const BenchArguments& arguments) {
  if (arguments.what == "step") return bench_step(arguments);
  if (arguments.what == "exchange") return bench_exchange(arguments);
  check_alone("bench " + arguments.what);
  if (arguments.what == "layers") return bench_layers(arguments);
  return bench_batch_norm(arguments);
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .says = "Measure a training step, its layers, BatchNorm or its exchange",
          .page = "bench",
          .examples = {{"lockstep bench step data/configs/quickstart.toml -d cpu:4 --iters 10",
                        "how long a training step takes"},
                       {"lockstep bench exchange -d cpu:4 --iters 10",
                        "what a BatchNorm exchange costs"}},
          .by_several_processes = true,
          .declare = declares(declare_bench, run_bench)};
}

}  // namespace lockstep
