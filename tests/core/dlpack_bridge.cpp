// A library for tests/core/dlpack_with_torch.py, which calls it through ctypes: it takes a tensor
// of PyTorch by DLPack and gives a view of it back. It has no tests of its own.
#include <tutti/core/dlpack.h>
#include <tutti/core/tensor.h>

#include <string>

namespace {
std::string message;
}

// Returns the tensor with its dimensions in reverse order, or a null pointer where it is refused.
extern "C" DLManagedTensor* reversed_by_tutti(DLManagedTensor* managed) try {
  const tutti::Tensor x = tutti::from_dlpack(managed);
  tutti::Dims order;
  for (int d = x.rank() - 1; d >= 0; --d) order.push_back(d);
  return tutti::to_dlpack(x.permute(order));
} catch (const tutti::Error& error) {
  message = error.what();
  return nullptr;
}

// Returns why the last tensor was refused.
extern "C" const char* refusal_of_tutti() { return message.c_str(); }
