// Kernels that take formats, sizes and orders at run time: one image each.
#include "attn/cuda/generic/age.cuh"
#include "attn/cuda/generic/append.cuh"
#include "attn/cuda/generic/convert.cuh"
#include "attn/cuda/generic/dequantise.cuh"
#include "attn/cuda/generic/merge.cuh"
