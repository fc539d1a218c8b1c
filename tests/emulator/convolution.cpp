// Replaces kernels/cuda/convolution.cpp, which calls cuDNN: computes convolutions by the CPU's
// kernels, on the same memory and in the stream's order.
#include "census.h"
#include "emulator.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/core/parallel.h>
#include <tutti/kernels/kernels.h>

namespace tutti::kernels::cuda {
namespace {

// A CPU tensor on the same memory. It does not own the memory, which stays allocated until the
// stream comes to its release.
Tensor on_host(const Tensor& t) {
  if (!t.defined()) return {};
  const Storage& storage = *t.storage();
  return Tensor(std::make_shared<Storage>(storage.data(), storage.bytes(), Device::cpu(), [] {}),
                t.shape(), t.strides(), t.offset(), t.dtype());
}

// The CPU has no float16 kernels, so float16 tensors are computed in float32 copies.
Tensor widened(const Tensor& t) {
  if (!t.defined() || t.dtype() != float16) return t;
  const Tensor wide = empty_like(t, float32);
  cpu::table().elementwise.copy(t, wide);
  return wide;
}

// Computes with one thread. The host thread that runs the work is a rank or a watcher by chance,
// and sums would depend on its number of threads.
class OneThread {
 public:
  OneThread() : before_(num_threads()) { set_num_threads(1); }
  ~OneThread() { set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

double bytes_of(const Tensor& t) {
  return static_cast<double>(t.numel()) * static_cast<double>(size_of(t.dtype()));
}

// Adds a convolution to a census, as if each of its three tensors moved once, and the casts around
// it: cuDNN takes tensors of one dtype, so kernels/cuda/convolution.cpp casts the weight (or its
// gradient) to that of the activations (or from it).
void count(const char* name, const Tensor& x, const Tensor& w, const Tensor& y) {
  using namespace emulator::census;
  const double weight = static_cast<double>(w.numel()) * static_cast<double>(size_of(x.dtype()));
  if (w.dtype() != x.dtype())
    note({.kind = Kind::kernel,
          .name = "convert_kernel<float>(around a convolution)",
          .bytes = bytes_of(w) + weight});
  note(
      {.kind = Kind::convolution,
       .name = name,
       .bytes = bytes_of(x) + weight + bytes_of(y),
       .flops = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(w.numel() / w.size(0))});
}

template <class Work>
void enqueue(const Tensor& output, Work work) {
  if (!is_floating(output.dtype()))
    fail<DTypeError>("emulated cuDNN: expected a floating dtype, got {}",
                     to_string(output.dtype()));
  emulator::enqueue(tutti::cuda::current_stream(output.device().index()).get(),
                    [work = std::move(work)] {
                      const OneThread one_thread;
                      work();
                    });
}

// A kernel writes to `wide`, which is copied to `narrow` at the end if its dtype is another.
struct Output {
  Tensor narrow, wide;
  explicit Output(const Tensor& t) : narrow(t), wide(widened(t)) {}
  ~Output() {
    if (narrow.defined() && narrow.dtype() != wide.dtype())
      cpu::table().elementwise.copy(wide, narrow);
  }
};

}  // namespace

extern const Convolution convolution{
    [](const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
       const Tensor& y) {
      count("convolution forward", x, w, y);
      enqueue(y, [x = on_host(x), w = on_host(w), bias = on_host(bias), options, y = on_host(y)] {
        const Output to(y);
        cpu::table().convolution.forward(widened(x), widened(w), widened(bias), options, to.wide);
      });
    },
    [](const Tensor& dy, const Tensor& w, const ConvOptions& options, const Tensor& dx) {
      count("convolution backward_input", dx, w, dy);
      enqueue(dx, [dy = on_host(dy), w = on_host(w), options, dx = on_host(dx)] {
        const Output to(dx);
        cpu::table().convolution.backward_input(widened(dy), widened(w), options, to.wide);
      });
    },
    [](const Tensor& x, const Tensor& dy, const ConvOptions& options, const Tensor& dw,
       const Tensor& db) {
      count("convolution backward_weight", x, dw, dy);
      enqueue(dw, [x = on_host(x), dy = on_host(dy), options, dw = on_host(dw), db = on_host(db)] {
        const Output weight(dw), bias(db);
        cpu::table().convolution.backward_weight(widened(x), widened(dy), options, weight.wide,
                                                 bias.wide);
      });
    },
    [](const Tensor&) {}};

}  // namespace tutti::kernels::cuda
