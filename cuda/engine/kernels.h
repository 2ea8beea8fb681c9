// Tells which kernels the ops of a model would run.
#pragma once

#include <string>

#include "../linear/choose.h"
#include "penstock.h"

namespace pen {

// The known device of an architecture, such as "sm_90a".
ProductDevice known_device(const char* arch);
// The kernels of an op, in their order, each as the path of its file under cuda/. The number of ops stands for the head and sampling.
// Throws if the op does not exist.
std::string kernels_of(const pen_model_desc& desc, const ProductDevice& device, const pen_load& load, uint32_t op);

}  // namespace pen
