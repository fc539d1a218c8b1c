#include "overlap.h"

#include <algorithm>
#include <array>
#include <span>

namespace tutti {
namespace {

// Returns whether two tensors have elements in the same block of memory, or in blocks that overlap.
bool meet(const Tensor& a, const Tensor& b) {
  const Storage &x = *a.storage(), &y = *b.storage();
  const auto begin = [](const Storage& of) { return reinterpret_cast<std::uintptr_t>(of.data()); };
  return begin(x) < begin(y) + y.bytes() && begin(y) < begin(x) + x.bytes() && a.numel() > 0 &&
         b.numel() > 0 && a.device() == b.device();
}

std::int64_t size_in_bytes(const Tensor& x) {
  return static_cast<std::int64_t>(size_of(x.dtype()));
}

std::int64_t address(const Tensor& x) {
  return reinterpret_cast<std::intptr_t>(x.storage()->data()) + x.offset() * size_in_bytes(x);
}

// Returns whether each element of `written` is computed from the element of `read` in its place.
bool are_same_elements(const Tensor& written, const Tensor& read) {
  if (address(written) != address(read) || size_of(written.dtype()) != size_of(read.dtype()))
    return false;
  const int extra = written.rank() - read.rank();
  for (int d = 0; d < written.rank(); ++d) {
    if (written.shape()[d] == 1) continue;
    const int own = d - extra;
    if (own < 0 || read.shape()[own] == 1 || read.strides()[own] != written.strides()[d])
      return false;
  }
  return true;
}

// A multiple of `step`, from `least` to `most` times, in the distance of two elements.
struct Term {
  std::int64_t step, least, most;
};

// Returns whether the terms can add up to `sum`. Their steps fall; they are mostly so far apart
// that each has one or two candidates. Gives up, with true, after `tries`.
bool can_add_up(std::span<const Term> terms, std::int64_t sum, int& tries) {
  if (terms.empty() || --tries < 0) return sum == 0 || tries < 0;
  std::int64_t low = 0, high = 0;  // what the terms after the first one add
  for (const Term& rest : terms.subspan(1)) {
    low += rest.step * rest.least;
    high += rest.step * rest.most;
  }
  const auto [step, least, most] = terms.front();
  const auto floor = [step = step](std::int64_t x) { return x / step - (x % step < 0 ? 1 : 0); };
  const std::int64_t last = std::min(most, floor(sum - low));
  for (std::int64_t n = std::max(least, floor(sum - high + step - 1)); n <= last; ++n)
    if (can_add_up(terms.subspan(1), sum - n * step, tries)) return true;
  return false;
}

// Returns whether two tensors, neither of them empty, have a byte in common: whether the distance
// of their first elements is a sum of strides, those of `a` taken forwards and of `b` backwards.
bool share_bytes(const Tensor& a, const Tensor& b) {
  const std::int64_t a_size = size_in_bytes(a), b_size = size_in_bytes(b);
  std::array<Term, 2 * Dims::max_rank + 1> terms;
  std::size_t count = 0;
  terms[count++] = {1, 1 - b_size, a_size - 1};  // within an element
  for (int d = 0; d < a.rank(); ++d)
    if (a.shape()[d] > 1 && a.strides()[d] > 0)
      terms[count++] = {a.strides()[d] * a_size, 0, a.shape()[d] - 1};
  for (int d = 0; d < b.rank(); ++d)
    if (b.shape()[d] > 1 && b.strides()[d] > 0)
      terms[count++] = {b.strides()[d] * b_size, 1 - b.shape()[d], 0};
  std::sort(terms.begin(), terms.begin() + count,
            [](const Term& x, const Term& y) { return x.step > y.step; });
  std::size_t distinct = 0;
  for (std::size_t i = 1; i < count; ++i) {
    if (terms[i].step != terms[distinct].step) {
      terms[++distinct] = terms[i];
      continue;
    }
    terms[distinct].least += terms[i].least;
    terms[distinct].most += terms[i].most;
  }
  int tries = 10000;
  return can_add_up(std::span(terms).first(distinct + 1), address(b) - address(a), tries);
}

}  // namespace

bool overlap(const Tensor& a, const Tensor& b) { return meet(a, b) && share_bytes(a, b); }

void expect_no_overlap(const char* op, const Tensor& written, const Tensor& read) {
  if (!meet(written, read) || are_same_elements(written, read) || !share_bytes(written, read))
    return;
  fail<ValueError>(
      "{}: a tensor of shape {} is read in the memory of the tensor of shape {} that is changed, "
      "but not element by element in the same order; pass a clone() of it",
      op, to_string(read.shape()), to_string(written.shape()));
}

}  // namespace tutti
