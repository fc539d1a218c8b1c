// Begins a region that is compiled for one level of processors (cpu_level.h); end_cpu_level.h ends
// it. CMake compiles each source with such a region once for every level, and defines
// TUTTI_CPU_AVX2, TUTTI_CPU_AVX512 or TUTTI_CPU_AVX512_BF16, or nothing for the baseline.
//
// The compiler's target is set for the functions of the region alone, instead of by -march for the
// whole source: the linker keeps one of the inline functions of the same name that it finds, so
// those of the standard library and of core/ must be the same in all levels. Inside a region
// everything stands in a namespace whose last part is TUTTI_CPU_LEVEL, and TUTTI_CPU_VECTOR_BYTES
// is the size of the level's widest vectors. All other includes come before this one.
//
// A function from outside the region is compiled for the level where it is inlined into one of the
// region, but a function of the region is not inlined into one from outside. So formulas may stand
// outside, and templates that call the body of a hot loop may not.
//
// TUTTI_INDEPENDENT_LOOP, before a loop, tells the compiler that no iteration reads what another
// one writes. The loop then needs no check for arrays that overlap before it runs on vectors, and
// does so where its output is its input, too. TUTTI_CPU_BASELINE is defined in the baseline alone.
//
// The targets name features and no processor, because GCC does not inline across processors.

#if defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || defined(__ASSOCIATIVE_MATH__) || \
    defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "tutti's kernels compute wrong values with -ffast-math or a part of it: remove the option"
#endif

#if defined(TUTTI_CPU_AVX512_BF16)
#define TUTTI_CPU_LEVEL avx512_bf16
#define TUTTI_CPU_VECTOR_BYTES 64
#if defined(__clang__)
#pragma clang attribute push(                                                                 \
    __attribute__((                                                                           \
        target("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")
#endif

#elif defined(TUTTI_CPU_AVX512)
#define TUTTI_CPU_LEVEL avx512
#define TUTTI_CPU_VECTOR_BYTES 64
#if defined(__clang__)
#pragma clang attribute push(                                                                 \
    __attribute__((target("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#endif

#elif defined(TUTTI_CPU_AVX2)
#define TUTTI_CPU_LEVEL avx2
#define TUTTI_CPU_VECTOR_BYTES 32
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif

#else
#define TUTTI_CPU_LEVEL baseline
#define TUTTI_CPU_BASELINE
#if defined(__AVX512F__)
#define TUTTI_CPU_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define TUTTI_CPU_VECTOR_BYTES 32
#else
#define TUTTI_CPU_VECTOR_BYTES 16
#endif
#endif

#if defined(__clang__)
#define TUTTI_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TUTTI_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif
