// Ends the region that begin_cpu_level.h began.

#undef TUTTI_CPU_LEVEL
#undef TUTTI_CPU_BASELINE
#undef TUTTI_INDEPENDENT_LOOP
#undef TUTTI_CPU_VECTOR_BYTES
#if defined(TUTTI_CPU_AVX512_BF16) || defined(TUTTI_CPU_AVX512) || defined(TUTTI_CPU_AVX2)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
