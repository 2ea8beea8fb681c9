//! Inputs in fixed point, as `fixed` takes them.

/// Columns that share an exponent.
pub const FIXED_BLOCK: usize = 256;
/// Columns of a step: a code in each byte of a register.
pub const STEP: usize = 64;
pub const STEPS: usize = FIXED_BLOCK / STEP;
/// Bytes of an integer.
pub const PLANES: usize = 3;

/// 256 columns of an input.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct FixedBlock {
    /// The bytes of the integers of each step, the highest first. Whole fixed blocks are in the order that `fixed::transposed` gives.
    pub planes: [[[i8; STEP]; PLANES]; STEPS],
    /// Sums of four neighbouring integers, for what is no whole fixed block.
    pub fours: [[i32; 16]; STEPS],
    /// Sums of the upper two planes of 16 integers, in the order of a whole fixed block.
    pub upper: [i32; 16],
    /// Sums of the lowest plane.
    pub lower: [i32; 16],
    /// Sums of 16 neighbouring integers.
    pub sixteens: [f32; 16],
    /// Sums of 32 neighbouring integers, then zeros.
    pub thirty_twos: [f32; 16],
    /// What an integer of 1 stands for. NaN if an input is not finite.
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

/// Splits a row of floats, a multiple of 32, into fixed blocks.
pub type SplitFn = unsafe fn(*const f32, usize, *mut FixedBlock);
