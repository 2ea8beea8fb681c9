//! Converts float16 to float32 through a table.

/// Every float16 as float32. A scale from this table is a memory operand, which the load unit broadcasts. A conversion would take three
/// operations of the vector units, which limit the speed of a decode step.
#[allow(long_running_const_eval, reason = "the compiler computes 65,536 entries")]
static HALVES: [f32; 1 << 16] = {
    let mut table = [0f32; 1 << 16];
    let mut i = 0;
    while i < table.len() {
        table[i] = model::dequant::f16_to_f32(i as u16);
        i += 1;
    }
    table
};

/// # Safety
/// `p` is valid for two bytes.
#[inline(always)]
pub(super) unsafe fn f16_at(p: *const u8) -> f32 {
    // SAFETY: the caller keeps the conditions above.
    unsafe { half_of(p.cast::<u16>().read_unaligned()) }
}

#[inline(always)]
pub(super) fn half_of(bits: u16) -> f32 {
    // SAFETY: the table has an entry for every number of 16 bits.
    unsafe { *HALVES.as_ptr().add(usize::from(bits)) }
}
