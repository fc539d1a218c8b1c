// Stands in for core/cuda in a build without CUDA: there is no device, and using one throws a
// DeviceError that says why.
#include "../error.h"
#include "generate.h"
#include "graph.h"
#include "pinned_memory.h"
#include "ranges.h"
#include "runtime.h"
#include "stream.h"

namespace tutti::cuda {
namespace {

[[noreturn]] void refuse() { fail<DeviceError>("cuda: {}", why_unavailable()); }

}  // namespace

int device_count() { return 0; }
std::string why_unavailable() {
  return "tutti was built without CUDA (TUTTI_CUDA=ON builds it in); use Device::cpu()";
}
const Properties& properties(int) { refuse(); }
Allocator& allocator(int) { refuse(); }
std::shared_ptr<Storage> pinned_storage(std::size_t, int) {
  fail<DeviceError>("pinned memory needs CUDA: {}", why_unavailable());
}
void copy_bytes(void*, Device, const void*, Device, std::size_t) { refuse(); }
void zero_bytes(void*, int, std::size_t) { refuse(); }
void bernoulli(const Elements&, Generator&, std::uint64_t) { refuse(); }
std::int64_t synchronizations() { return 0; }
void synchronize(int) { refuse(); }

struct Stream::State {};
Stream Stream::create(int, bool) { refuse(); }
int Stream::device() const { refuse(); }
CUstream_st* Stream::get() const { refuse(); }
void Stream::wait(const Event&) const { refuse(); }
void Stream::wait(const Stream&) const { refuse(); }
void Stream::synchronize(const char*) const { refuse(); }
bool Stream::is_capturing() const { refuse(); }

struct Event::State {};
void Event::record(const Stream&) { refuse(); }
bool Event::passed() const { return true; }
void Event::synchronize(const char*) const {}
double Event::milliseconds_since(const Event&) const { refuse(); }
CUevent_st* Event::get() const { return nullptr; }

const Stream& default_stream(int) { refuse(); }
const Stream& current_stream(int) { refuse(); }
const Stream& current_stream() { refuse(); }
DeviceScope::DeviceScope(int) : previous_(0) { refuse(); }
DeviceScope::~DeviceScope() = default;
StreamScope::StreamScope(const Stream& stream) : device_(0), previous_(stream) { refuse(); }
StreamScope::~StreamScope() = default;

struct Readback::State {};
Readback::Readback(int, std::size_t) { refuse(); }
Readback::~Readback() = default;
Readback::Readback(Readback&&) noexcept = default;
Readback& Readback::operator=(Readback&&) noexcept = default;
void* Readback::device_data() const { return nullptr; }
bool Readback::arrived() const { return true; }
void Readback::wait(const char*) const {}
const void* Readback::data() const { return nullptr; }

struct Graph::State {};
Graph::Graph(Device, const std::function<void()>&) { refuse(); }
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
void Graph::replay() { refuse(); }
std::size_t Graph::size() const { return 0; }
bool is_capturing(Device) { return false; }
bool call_before_replay(Device, std::function<void()>) { return false; }

bool has_ranges() { return false; }
void push_range(const char*) {}
void pop_range() {}

}  // namespace tutti::cuda
