//! Defines [`FixedBlock`]: inputs in the fixed-point form that `fixed` takes.

/// The number of columns that share an exponent.
pub const FIXED_BLOCK: usize = 256;
/// The number of columns per step: one code in each byte of a register.
pub const STEP: usize = 64;
pub const STEPS: usize = FIXED_BLOCK / STEP;
/// The number of bytes per integer.
pub const PLANES: usize = 3;

/// 256 columns of an input.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct FixedBlock {
    /// The bytes of each step's integers, the highest first. Whole fixed blocks are in the order of `fixed::transposed`.
    pub planes: [[[i8; STEP]; PLANES]; STEPS],
    /// Sums of four neighbouring integers, for incomplete fixed blocks.
    pub fours: [[i32; 16]; STEPS],
    /// Sums of the upper two planes of 16 integers, in the order of a whole fixed block.
    pub upper: [i32; 16],
    /// Sums of the lowest plane.
    pub lower: [i32; 16],
    /// Sums of 16 neighbouring integers.
    pub sixteens: [f32; 16],
    /// Sums of 32 neighbouring integers, then zeros.
    pub thirty_twos: [f32; 16],
    /// The value of an integer of 1. NaN if an input is not finite.
    pub unit: f32,
}

impl FixedBlock {
    pub const ZERO: Self = Self {
        planes: [[[0; STEP]; PLANES]; STEPS],
        fours: [[0; 16]; STEPS],
        upper: [0; 16],
        lower: [0; 16],
        sixteens: [0.0; 16],
        thirty_twos: [0.0; 16],
        unit: 0.0,
    };
}

const _: () = assert!(size_of::<FixedBlock>() < 6 * FIXED_BLOCK);

/// Splits a row of floats into fixed blocks. The number of floats is a multiple of 32.
pub type SplitFn = unsafe fn(*const f32, usize, *mut FixedBlock);
