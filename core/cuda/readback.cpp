#include "readback.h"

#include "check.h"
#include "pinned_buffer.h"

namespace tutti::cuda {

struct Readback::State {
  PinnedBuffer bytes;
};

Readback::Readback(const void* from, int device, std::size_t bytes)
    : state_(std::make_unique<State>(PinnedBuffer(bytes))) {
  const DeviceScope scope(device);
  const Stream& stream = current_stream(device);
  check(cudaMemcpyAsync(state_->bytes.data(), from, bytes, cudaMemcpyDeviceToHost, stream.get()),
        "cudaMemcpyAsync", "Readback");
  state_->bytes.record_use(stream);
}

Readback::~Readback() = default;
Readback::Readback(Readback&&) noexcept = default;
Readback& Readback::operator=(Readback&&) noexcept = default;

bool Readback::arrived() const { return state_->bytes.uses().passed(); }
void Readback::wait(const char* op) const { state_->bytes.uses().synchronize(op); }
const void* Readback::data() const { return state_->bytes.data(); }

}  // namespace tutti::cuda
