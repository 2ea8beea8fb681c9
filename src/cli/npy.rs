//! NumPy's files of arrays.

use std::path::Path;

/// Writes rows of `columns` numbers as float32 [rows, columns] in NumPy's format 1.0: magic, version, header length, a Python literal
/// padded to 64 bytes, then the data.
pub fn write_npy(path: &Path, rows: &[Vec<f32>], columns: usize) -> std::io::Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {columns}), }}", rows.len());
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    outside::write(path, |file| {
        file.write_all(b"\x93NUMPY\x01\x00")?;
        file.write_all(&(header.len() as u16).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        rows.iter().try_for_each(|row| file.write_all(bytemuck::cast_slice(row)))
    })
}
