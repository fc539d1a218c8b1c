// Stands in for kernels/cuda/convolution.cpp, which calls cuDNN: the CPU's kernels on the same
// memory, in the stream's order.
#include "emulator.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/core/parallel.h>
#include <tutti/kernels/convolution.h>
#include <tutti/kernels/elementwise.h>

namespace tutti::kernels::cuda {
namespace {

// The same memory as a tensor of the CPU. It owns nothing: what is released later in the stream is
// there until then.
Tensor on_host(const Tensor& t) {
  if (!t.defined()) return {};
  const Storage& storage = *t.storage();
  return Tensor(std::make_shared<Storage>(storage.data(), storage.bytes(), Device::cpu(), [] {}),
                t.shape(), t.strides(), t.offset(), t.dtype());
}

// The CPU does not compute in float16: in a copy in float32, which the output comes back from.
Tensor widened(const Tensor& t) {
  if (!t.defined() || t.dtype() != float16) return t;
  const Tensor wide = empty_like(t, float32);
  cpu::elementwise().copy(t, wide);
  return wide;
}

// Whoever comes by runs it, a rank or a watcher, each with its own number of threads: sums would
// differ by chance.
class OneThread {
 public:
  OneThread() : before_(num_threads()) { set_num_threads(1); }
  ~OneThread() { set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

template <class Work>
void enqueue(const Tensor& output, Work work) {
  if (!is_floating(output.dtype()))
    fail<DTypeError>("emulated library: {} is no type it computes in", to_string(output.dtype()));
  emulator::enqueue(tutti::cuda::current_stream(output.device().index()).get(),
                    [work = std::move(work)] {
                      const OneThread one_thread;
                      work();
                    });
}

// What a kernel writes into instead of `narrow`; copied there at the end.
struct Output {
  Tensor narrow, wide;
  explicit Output(const Tensor& t) : narrow(t), wide(widened(t)) {}
  ~Output() {
    if (narrow.defined() && narrow.dtype() != wide.dtype()) cpu::elementwise().copy(wide, narrow);
  }
};

}  // namespace

const Convolution& convolution() {
  static const Convolution table{
      [](const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
         const Tensor& y) {
        enqueue(y, [x = on_host(x), w = on_host(w), bias = on_host(bias), options, y = on_host(y)] {
          const Output to(y);
          cpu::convolution().forward(widened(x), widened(w), widened(bias), options, to.wide);
        });
      },
      [](const Tensor& dy, const Tensor& w, const ConvOptions& options, const Tensor& dx) {
        enqueue(dx, [dy = on_host(dy), w = on_host(w), options, dx = on_host(dx)] {
          const Output to(dx);
          cpu::convolution().backward_input(widened(dy), widened(w), options, to.wide);
        });
      },
      [](const Tensor& x, const Tensor& dy, const ConvOptions& options, const Tensor& dw,
         const Tensor& db) {
        enqueue(dw,
                [x = on_host(x), dy = on_host(dy), options, dw = on_host(dw), db = on_host(db)] {
                  const Output weight(dw), bias(db);
                  cpu::convolution().backward_weight(widened(x), widened(dy), options, weight.wide,
                                                     bias.wide);
                });
      }};
  return table;
}

}  // namespace tutti::kernels::cuda
