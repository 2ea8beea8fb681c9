//! Defines [`FixedBlock`]: inputs in the fixed-point form that `fixed` takes.

/// The number of columns per fixed block.
pub const FIXED_BLOCK: usize = 256;
/// The number of columns per step: one code in each byte of a register.
pub const STEP: usize = 64;
pub const STEPS: usize = FIXED_BLOCK / STEP;

/// The most fixed blocks per K tile: those that are unpacked at a time for many rows of input. Few enough that a block of weights stays in
/// L1.
pub const K_TILE_BLOCKS: usize = 4;

/// The bytes of a step's integers n, in two forms: n = 256 · `high` + `low` with a signed `low`, and n = 256 · (`raised` - 128) + `low`
/// with an unsigned one.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Bytes {
    pub high: [i8; STEP],
    pub low: [u8; STEP],
    pub raised: [u8; STEP],
}

/// 256 columns of an input: integers of 16 bits and a unit per 16 columns. Where some inputs are much larger than others, an integer has
/// eight more bits after the point.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct FixedBlock {
    /// Whole fixed blocks are in the order of `fixed::transposed`.
    pub steps: [Bytes; STEPS],
    /// The values of an integer of 1 by lane: of all steps of a whole fixed block, or of each step of an incomplete one. NaN if one of 16
    /// inputs is not finite.
    pub units: [[f32; 16]; STEPS],
    /// 128 times the sums of a lane's integers, by lane like the units.
    pub offsets: [[i32; 16]; STEPS],
    /// 256 times what rounding left of each integer.
    pub fractions: [[i8; STEP]; STEPS],
    /// 128 times the sums of a lane's fractions.
    pub fraction_offsets: [[i32; 16]; STEPS],
    /// Sums of 16 neighbouring inputs.
    pub sixteens: [f32; 16],
    /// Sums of 32 neighbouring inputs, then zeros.
    pub thirty_twos: [f32; 16],
    pub has_fractions: bool,
    /// Whether this or one of the next fixed blocks of a K tile has fractions.
    pub tile_has_fractions: bool,
}

impl FixedBlock {
    pub const ZERO: Self = Self {
        steps: [Bytes { high: [0; STEP], low: [0; STEP], raised: [0; STEP] }; STEPS],
        units: [[0.0; 16]; STEPS],
        offsets: [[0; 16]; STEPS],
        fractions: [[0; STEP]; STEPS],
        fraction_offsets: [[0; 16]; STEPS],
        sixteens: [0.0; 16],
        thirty_twos: [0.0; 16],
        has_fractions: false,
        tile_has_fractions: false,
    };
}

/// Splits a row of floats into fixed blocks. The number of floats is a multiple of 32.
pub type SplitFn = unsafe fn(*const f32, usize, *mut FixedBlock);
