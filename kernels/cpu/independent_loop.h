// TUTTI_INDEPENDENT_LOOP, before a loop, tells the compiler that no iteration reads what another
// one writes. The loop then needs no check for arrays that overlap before it runs on vectors, and
// does so where its output is its input, too.
#pragma once

#if defined(__clang__)
#define TUTTI_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TUTTI_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif
