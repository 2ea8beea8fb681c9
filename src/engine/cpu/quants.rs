//! Exact scalar dequantisation, one function a tensor type.
