// Uses the packaged library, and catches an exception of it by its own type.
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
