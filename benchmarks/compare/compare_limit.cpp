// The limit that benchmarks/compare sets beside a training step: all convolutions of the step as
// oneDNN primitives in the layouts that oneDNN likes best, on buffers that stay where they are; and
// how many bytes everything else moves at least. It is a contender like the others (contender.h),
// but its outputs are the bytes of the rest and the copy bandwidth in bytes per second.
#include "../../examples/unet.h"
#include "../copy.h"
#include "contender.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>
#include <tutti/kernels/cpu/onednn_primitive.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/models/segmentation.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>

namespace {

using namespace tutti;
namespace onednn = kernels::cpu::onednn;
using dnnl::memory;

// A primitive and its arguments. The memory of an argument is its own, so nothing is reordered.
struct Call {
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;

  template <class Descriptor>
  Call(const Descriptor& descriptor, const std::unordered_map<int, memory::desc>& descs)
      : primitive(descriptor) {
    for (const auto& [id, desc] : descs) {
      arguments.emplace(id, memory(desc, onednn::engine()));
      auto* bytes = static_cast<unsigned char*>(arguments.at(id).get_data_handle());
      std::fill_n(bytes, desc.get_size(), static_cast<unsigned char>(0x3c));  // small numbers
    }
  }
};

memory::dims dims_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

// The primitives of one convolution in training. The first convolution needs no gradient of x. A
// transposed convolution has those of the convolution from its output to its input.
template <class Layer>
std::vector<Call> calls_of(const Layer& layer, const Shape& x_shape, const Shape& y_shape,
                           memory::data_type type, bool is_first) {
  const auto any = memory::format_tag::any;
  const memory::desc x(dims_of(x_shape), type, any), y(dims_of(y_shape), type, any),
      w(dims_of(layer.weight.shape()), type, any),
      dw(dims_of(layer.weight.shape()), memory::data_type::f32, any);
  const auto& o = layer.options();
  const memory::dims stride(2, o.stride[0]), padding(2, o.padding[0]),
      dilation(2, o.dilation[0] - 1);
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto forward = onednn::describe<dnnl::convolution_forward>(
      dnnl::prop_kind::forward_training, algorithm, x, w, memory::desc(), y, stride, dilation,
      padding, padding);
  std::vector<Call> calls{{forward,
                           {{DNNL_ARG_SRC, forward.src_desc()},
                            {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                            {DNNL_ARG_DST, forward.dst_desc()},
                            {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}}}};
  if (!is_first) {
    const auto data = onednn::describe_backward<dnnl::convolution_backward_data>(
        forward, algorithm, x, w, y, stride, dilation, padding, padding);
    calls.push_back({data,
                     {{DNNL_ARG_DIFF_SRC, data.diff_src_desc()},
                      {DNNL_ARG_WEIGHTS, data.weights_desc()},
                      {DNNL_ARG_DIFF_DST, data.diff_dst_desc()},
                      {DNNL_ARG_SCRATCHPAD, data.scratchpad_desc()}}});
  }
  const auto weights = onednn::describe_backward<dnnl::convolution_backward_weights>(
      forward, algorithm, x, dw, memory::desc(), y, stride, dilation, padding, padding);
  calls.push_back({weights,
                   {{DNNL_ARG_SRC, weights.src_desc()},
                    {DNNL_ARG_DIFF_WEIGHTS, weights.diff_weights_desc()},
                    {DNNL_ARG_DIFF_DST, weights.diff_dst_desc()},
                    {DNNL_ARG_SCRATCHPAD, weights.scratchpad_desc()}}});
  return calls;
}

struct Step {
  std::vector<Call> forward, backward;  // in the order of the step
  double bytes_of_rest = 0;
};

// Watches a forward of the model to see its shapes. `last` is the name of a block's last
// convolution.
Step step_of(nn::Layer& model, const std::string& last, const Shape& images,
             memory::data_type type) {
  Step step;
  const double element = type == memory::data_type::bf16 ? 2 : 4;
  std::vector<std::vector<Call>> backwards;
  for (const auto& [name, module] : model.named_modules()) {
    if (auto* convolution = dynamic_cast<nn::Conv2d*>(module)) {
      const bool ends_block = name.ends_with(last);
      convolution->add_forward_hook(
          [&, convolution, ends_block](nn::Layer&, const Tensor& x, const Tensor& y) {
            auto calls = calls_of(*convolution, x.shape(), y.shape(), type, backwards.empty());
            step.forward.push_back(std::move(calls.front()));
            calls.erase(calls.begin());
            backwards.push_back(std::move(calls));
            // Its batch normalisation reads x twice and writes y; its backward reads dy and x twice
            // and writes dx. At the end of a block both also read or write a residual.
            step.bytes_of_rest += static_cast<double>(y.numel()) * element * (ends_block ? 11 : 8);
            return Tensor();
          });
    } else if (auto* transposed = dynamic_cast<nn::ConvTranspose2d*>(module)) {
      transposed->add_forward_hook([&, transposed](nn::Layer&, const Tensor& x, const Tensor& y) {
        backwards.push_back(calls_of(*transposed, y.shape(), x.shape(), type, false));
        // The concatenation behind it reads and writes y and a skip as large as y; its backward
        // does so with their gradients.
        step.bytes_of_rest += static_cast<double>(y.numel()) * element * 8;
        return Tensor();
      });
    }
  }
  const NoGrad guard;
  model(randn(images).contiguous(MemoryFormat::channels_last));
  for (auto calls = backwards.rbegin(); calls != backwards.rend(); ++calls)
    std::move(calls->begin(), calls->end(), std::back_inserter(step.backward));
  for (const Tensor& parameter : model.parameters())  // SGD reads three tensors and writes two
    step.bytes_of_rest += static_cast<double>(parameter.numel()) * 4 * 5;
  return step;
}

// Returns the bytes read and written in a second by the fastest copy of 64 MiB.
double copy_bandwidth() {
  constexpr std::int64_t bytes = std::int64_t{64} << 20;
  const Tensor from = randn({bytes / 4}), to = randn({bytes / 4});
  double best = 1e9;
  for (const auto how : benchmarks::copies)
    for (const double seconds :
         compare::times_of(5, 1, [&] { benchmarks::copy(to.raw(), from.raw(), bytes, how); }))
      best = std::min(best, seconds);
  return 2 * static_cast<double>(bytes) / best;
}

std::shared_ptr<nn::Layer> make_model(const std::string& name) {
  if (name == "unet")
    return std::make_shared<examples::UNet>(examples::UNet::Options{.classes = 21});
  if (name.starts_with("fcn")) return nn::segmentation_network(name, {.classes = 21});
  return nn::resnet(name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s train MODEL FOLDER float32|bfloat16\n", argv[0]);
    return 2;
  }
  const std::string network = argv[2];
  const auto model = make_model(network);
  Shape images;
  for (const auto& [name, tensor] : load_safetensors(std::string(argv[3]) + "/input.safetensors"))
    if (name == "images") images = tensor.shape();
  const bool is_bfloat16 = std::string(argv[4]) == "bfloat16";
  const std::string last = network == "unet" ? "none" : network.ends_with("50") ? "conv3" : "conv2";
  Step step =
      step_of(*model, last, images, is_bfloat16 ? memory::data_type::bf16 : memory::data_type::f32);
  dnnl::stream stream(onednn::engine());
  const auto iteration = [&] {
    for (auto* calls : {&step.forward, &step.backward})
      for (const Call& call : *calls) call.primitive.execute(stream, call.arguments);
  };
  iteration();
  compare::serve({{step.bytes_of_rest, copy_bandwidth()},
                  [&](int count) { return compare::times_of(count, 1, iteration); }});
}
