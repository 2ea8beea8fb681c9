// What the parts of a forward pass share.
#pragma once

#include "../elementwise/elementwise.h"
#include "../linear/linear.h"
#include "model.h"

namespace pen {

// One matrix's product, into `out` [num_tokens, ldo]. x: [num_tokens, ldx].
Linear product_of(const pen_model& model, const Matrix& w, const __half* x, int ldx, int num_tokens, Epilogue epilogue, float* out,
                  int ldo);

// A step on its way through the layers.
struct Pass {
  pen_model& m;
  const pen_kv& kv;
  const Step& step;
  Launch launch;
  int tokens;
  float* x;  // the residual stream: one of its two buffers

  // The norm of the residual stream. With a branch to add, the residual stream moves to the other buffer.
  Norm norm(const float* branch_weight, const float* weight);
  // Has `args` read the norm as its input: the layer computes it for few rows, else a kernel in front of it.
  void normalise(Linear& args, const Norm& norm, const float* bias) const;
  Linear product(const Matrix& w, const __half* in, int ldx, Epilogue epilogue, float* out, int ldo) const {
    return product_of(m, w, in, ldx, tokens, epilogue, out, ldo);
  }

  // Where a branch is written: onto x, or into a buffer of its own if it is normalised before it is added.
  float* branch_out(const float* post_norm) const { return post_norm ? m.scratch.branch.as<float>() : x; }
  // The branch W · in + bias.
  void branch(const Matrix& w, const __half* in, int ld, const float* post_norm, const float* bias) const;

  void attention(int index, const Layer& layer, const Norm& norm);
  void feed_forward(const Layer& layer, const Norm& norm);

 private:
  Epilogue activation() const { return m.desc.activation == 0 ? Epilogue::SILU_MUL : Epilogue::GELU_MUL; }
  void dense(const Layer& layer, const Norm& norm) const;
  void experts(const Layer& layer, const Norm& norm) const;
  void routed(const Layer& layer, int group, int num_groups) const;
  void shared(const FeedForward& f) const;
};

}  // namespace pen
