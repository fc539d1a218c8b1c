#include "flag_values.h"
#include "flags.h"
#include "option_words.h"

namespace tutti::examples {

void add_device_flags(CLI::App& app, TrainOptions& o) {
  add_parsed(
      app, "--precision",
      [&](const std::string& text) { o.precision = precision_from_string(text); },
      "float32; bf16: convolutions and matrix products in bfloat16, all else in float32; fp16: the "
      "same in float16, with loss scaling, on cuda only; or float64: plain reference code, slow "
      "[float32]");
  add_parsed(
      app, "--device", [&](const std::string& text) { o.device = Device::from_string(text); },
      "cpu, cuda or cuda:INDEX; with cuda, rank r takes device r of its host, and ranks share "
      "devices where there are fewer of them [cpu]");
  app.add_flag("--cuda-graph", o.cuda_graph,
               "With --device cuda, record a step, the optimizer included, once and replay it, "
               "which costs the host one launch for each step; where that cannot be done it says "
               "why and goes on without");
  app.add_flag("--allow-tf32", o.allow_tf32,
               "With --device cuda, let convolutions and matrix products in float32 round their "
               "inputs to TF32 (10 bits of mantissa), as PyTorch's convolutions do");
  app.add_flag("--autotune", o.autotune,
               "With --device cuda, time several of cuDNN's algorithms at the first convolution of "
               "each shape and keep the fastest; two runs may then differ in their last bits");
  add_parsed(
      app, "--memory-format",
      [&](const std::string& text) { o.memory_format = memory_format_from_string(text); },
      "channels_last (fast) or contiguous [channels_last]");
}

}  // namespace tutti::examples
