// A program that is compiled with what pkg-config says. Exceptions of the library must be caught by
// their own type, which needs a shared library to export their type information.
#include <tutti/tutti.h>

#include <cstdio>
using namespace tutti;

int main() {
  try {
    matmul(randn({2, 3}), randn({4, 5}));
  } catch (const ShapeError& error) {
    std::printf("tutti %s: ShapeError: %s\n", version().c_str(), error.what());
    return 0;
  }
  return 1;
}
