// Counts the bytes that a kernel reads and writes, from its arguments: each tensor once, to the end
// of its allocation, or as many elements as the kernel visits where its arguments say that. It is
// compiled like a kernel, because the types of the arguments are CUDA's.
#include "census_arguments.h"

#include "census.h"

#include <tutti/kernels/cuda/offset_calculator.h>
#include <tutti/kernels/cuda/tensor_list.h>

#include <algorithm>
#include <string_view>

namespace emulator::census {
namespace {

using tutti::kernels::cuda::List;
using tutti::kernels::cuda::ListOf;
using tutti::kernels::cuda::OffsetCalculator;
using tutti::kernels::cuda::ScaledCopy;
using tutti::kernels::cuda::TypedPointer;

const void* address_at(const void* argument, std::size_t offset) {
  const void* address = nullptr;
  std::memcpy(&address, static_cast<const char*>(argument) + offset, sizeof address);
  return address;
}

double elements_of(const OffsetCalculator& c) {
  const std::int64_t vector = c.vectorized ? OffsetCalculator::vector_size : 1,
                     units_of_row = std::max<std::int64_t>(1, (c.inner + vector - 1) / vector);
  return static_cast<double>(c.units / units_of_row * c.inner);
}

// Optimizers read and write the parameter and its state, and read the gradient. Other kernels with
// lists visit each tensor once.
double bytes_of_list(const List& list, std::string_view signature) {
  // The first template argument: parameters may be pointers to double as well.
  const double width = signature.find("_kernel<double") != signature.npos ? 8 : 4;
  const bool updates = signature.find("step_kernel") != signature.npos;
  double bytes = 0;
  for (int i = 0; i < list.count; ++i) {
    const auto& e = list.entries[i];
    for (const void* changed :
         {static_cast<const void*>(e.parameter), static_cast<const void*>(e.first),
          static_cast<const void*>(e.second)})
      if (changed) bytes += (updates ? 2 : 1) * static_cast<double>(e.size) * width;
    if (e.gradient && e.gradient != e.parameter) bytes += static_cast<double>(e.size) * width;
    if (e.rounded) bytes += static_cast<double>(e.size) * 2;
  }
  return bytes;
}

double bytes_of_list(const ListOf<ScaledCopy>& list) {
  constexpr double width = 4;  // the buckets of a step are float32
  double bytes = 0;
  for (int i = 0; i < list.count; ++i) {
    const ScaledCopy& e = list.entries[i];
    bytes += static_cast<double>(e.size) * (width + static_cast<double>(size_of(e.dtype)));
  }
  return bytes;
}

double width_of_pointer(std::string_view type) {
  if (type.find("char") != type.npos) return 1;
  if (type.find("half") != type.npos || type.find("bfloat16") != type.npos ||
      type.find("short") != type.npos)
    return 2;
  if (type.find("long") != type.npos || type.find("double") != type.npos) return 8;
  return 4;
}

// Returns the bytes behind one argument of a kernel that visits `elements` elements (0: unknown).
// The numbers of each channel and the partial sums of blocks, which stay in the cache, do not
// count.
double bytes_of_argument(std::string_view type, const void* argument, double elements) {
  const auto has = [&](const char* word) { return type.find(word) != type.npos; };
  const auto limited = [&](const void* address, double width) {
    const auto all = static_cast<double>(bytes_from(address));
    return elements > 0 ? std::min(all, elements * width) : all;
  };
  if (type.ends_with("*")) return limited(address_at(argument, 0), width_of_pointer(type));
  if (has("SecondArgument")) argument = static_cast<const char*>(argument) + sizeof(void*);
  if (has("TypedPointer") || has("SecondArgument")) {
    const void* base = address_at(argument, 0);
    if (bytes_from(base) == 0) return 0;
    return limited(base,
                   static_cast<double>(size_of(static_cast<const TypedPointer*>(argument)->dtype)));
  }
  const bool begins_with_address = has("SlicePointer") || has("View") || has("CrossEntropyInputs");
  return begins_with_address ? limited(address_at(argument, 0), 8) : 0;
}

}  // namespace

std::vector<std::string> parameter_types(const std::string& signature) {
  std::vector<std::string> types;
  int depth = 0;
  // The parameters are in the last pair of brackets; "(anonymous namespace)" is in others.
  const std::size_t end = signature.rfind(')');
  std::size_t begin = end;
  for (; begin > 0; --begin) {
    if (signature[begin] == ')') ++depth;
    if (signature[begin] == '(' && --depth == 0) break;
  }
  std::string type;
  for (std::size_t i = begin + 1; i < end; ++i) {
    const char c = signature[i];
    if (c == '<' || c == '(') ++depth;
    if (c == '>' || c == ')') --depth;
    if (c == ',' && depth == 0) types.push_back(std::exchange(type, {}));
    else type += c;
  }
  if (!type.empty()) types.push_back(type);
  return types;
}

void read_arguments(Call& launch, void** arguments) {
  const std::vector<std::string> types = parameter_types(launch.name);
  double elements = 0;
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i].ends_with("::OffsetCalculator"))
      elements = elements_of(*static_cast<const OffsetCalculator*>(arguments[i]));
    if (types[i].find("ListOf<tutti::kernels::cuda::Entry>") != std::string::npos) {
      launch.bytes += bytes_of_list(*static_cast<const List*>(arguments[i]), launch.name);
      return;  // What these kernels read beside the list, such as counters, stays in the cache.
    }
    if (types[i].find("ListOf<tutti::kernels::cuda::ScaledCopy>") != std::string::npos)
      launch.bytes += bytes_of_list(*static_cast<const ListOf<ScaledCopy>*>(arguments[i]));
  }
  for (std::size_t i = 0; i < types.size(); ++i)
    launch.bytes += bytes_of_argument(types[i], arguments[i], elements);
  // The sum is read, too.
  if (launch.name.find("axpy_kernel") != std::string::npos && types.size() == 4)
    launch.bytes += bytes_of_argument(types[3], arguments[3], elements);
}

}  // namespace emulator::census
