#include "runtime.h"

#include "check.h"
#include "pinned_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace tutti::cuda {
namespace {

struct Devices {
  int count = 0;
  std::string why_none;
};

// Says why cudaGetDeviceCount, which returned `status`, found no device.
std::string why_no_device(cudaError_t status) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "tutti was built with CUDA, but this machine has no NVIDIA driver (libcuda.so.1); use "
           "Device::cpu()";
  if (status == cudaErrorInsufficientDriver)
    return fmt::format(
        "the NVIDIA driver found here supports CUDA {}.{}, but tutti was built with CUDA {}.{}, "
        "which needs driver {} or later: update the driver, or build tutti with {}",
        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
        CUDART_VERSION < 13000 ? 525 : 580,
        driver < 12000 ? "TUTTI_CUDA=OFF" : "CUDA 12.4 to 12.9");
  if (status != cudaSuccess && status != cudaErrorNoDevice)
    return fmt::format("cudaGetDeviceCount failed: {} ({})", cudaGetErrorString(status),
                       cudaGetErrorName(status));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return "this machine has an NVIDIA driver, but no CUDA device";
  return fmt::format("the NVIDIA driver shows no CUDA device (CUDA_VISIBLE_DEVICES is '{}')",
                     visible);
}

// The driver is asked once: its first answer stays true for the process.
const Devices& devices() {
  static const auto& devices = *new const Devices([] {  // threads may outlive static objects
    Devices found;
    const cudaError_t status = cudaGetDeviceCount(&found.count);
    if (status == cudaSuccess && found.count > 0) return found;
    cudaGetLastError();
    return Devices{0, why_no_device(status)};
  }());
  return devices;
}

Properties query_properties(int device) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties", "properties");
  return {p.name, p.major, p.minor, p.multiProcessorCount};
}

// Large copies are cut into pieces of this size: the device moves one while the host fills the
// next.
constexpr std::size_t piece_bytes = std::size_t{8} << 20;

void to_device(void* to, int device, const void* from, std::size_t bytes) {
  const DeviceScope scope(device);
  const Stream& stream = current_stream(device);
  if (stream.is_capturing())
    fail<DeviceError>(
        "copy of {} bytes from the host to cuda:{}: cannot be captured into a graph, since a "
        "replay would copy what the host had at capture: copy before the capture, into a tensor "
        "that the graph reads",
        bytes, device);
  if (copy_from_pinned(to, from, bytes, stream)) return;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t count = std::min(piece_bytes, bytes - done);
    PinnedBuffer staging(count, device);
    std::memcpy(staging.data(), static_cast<const char*>(from) + done, count);
    check(cudaMemcpyAsync(static_cast<char*>(to) + done, staging.data(), count,
                          cudaMemcpyHostToDevice, stream.get()),
          "cudaMemcpyAsync", "copy to the device");
    staging.record_use(stream);
    done += count;
  }
}

void to_host(void* to, const void* from, int device, std::size_t bytes) {
  const DeviceScope scope(device);
  const Stream& stream = current_stream(device);
  if (!stream.is_capturing())  // the driver stages the copy
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream.get()), "cudaMemcpyAsync",
          "copy to the host");
  stream.synchronize("copy to the host");  // throws in a capture
}

void between_devices(void* to, int to_device, const void* from, int from_device,
                     std::size_t bytes) {
  const DeviceScope scope(to_device);
  const Stream &stream = current_stream(to_device), &source = current_stream(from_device);
  stream.wait(source);
  if (to_device == from_device)
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
          "cudaMemcpyAsync", "copy on the device");
  else
    check(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream.get()),
          "cudaMemcpyPeerAsync", "copy between devices");
  source.wait(stream);  // later work there may overwrite or release the source
}

}  // namespace

int device_count() { return devices().count; }
std::string why_unavailable() { return devices().why_none; }

const Properties& properties(int device) {
  const DeviceScope scope(device);  // checks the index
  static auto* mutex = new std::mutex;
  static auto* known =
      new std::vector<std::unique_ptr<const Properties>>(static_cast<std::size_t>(device_count()));
  const std::lock_guard lock(*mutex);
  auto& entry = (*known)[static_cast<std::size_t>(device)];
  if (!entry) entry = std::make_unique<const Properties>(query_properties(device));
  return *entry;
}

void copy_bytes(void* to, Device to_where, const void* from, Device from_where, std::size_t bytes) {
  if (from_where.is_cpu()) to_device(to, to_where.index(), from, bytes);
  else if (to_where.is_cpu()) to_host(to, from, from_where.index(), bytes);
  else between_devices(to, to_where.index(), from, from_where.index(), bytes);
}

void zero_bytes(void* data, int device, std::size_t bytes) {
  const DeviceScope scope(device);
  check(cudaMemsetAsync(data, 0, bytes, current_stream(device).get()), "cudaMemsetAsync",
        "zero_bytes");
}

}  // namespace tutti::cuda
